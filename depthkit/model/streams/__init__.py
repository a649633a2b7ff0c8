"""Streams: how the residual is carried, one file a kind."""
