"""Channel mixers, one file a kind."""
