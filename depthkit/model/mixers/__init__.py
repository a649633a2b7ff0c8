"""Token mixers, one file a kind."""
