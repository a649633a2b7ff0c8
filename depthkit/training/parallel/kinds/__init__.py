"""One registered way to share the work among processes a file."""
