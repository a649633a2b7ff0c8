"""Corpora, one registered file each."""
