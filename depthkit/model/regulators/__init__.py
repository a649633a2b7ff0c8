"""Regulators: gains over depth, one file a kind."""
