"""Normalisers, one file a kind."""
