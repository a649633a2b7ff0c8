"""Tokenizers, one registered file each."""
