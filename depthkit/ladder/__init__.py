"""Depth ladders: many runs along named axes, one answer."""
