"""Where rungs run: one registered file a place."""
