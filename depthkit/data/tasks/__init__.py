"""Synthetic tasks that need depth: corpora that are generated, one registered file each."""
