"""Optimisers, one registered file each."""
