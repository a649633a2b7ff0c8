"""Measurements of depthkit, alone and beside its peers. Not part of the package."""
