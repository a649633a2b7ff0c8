"""Null models: what the numbers are held against, one registered file each.

A null model is built as `component(config).of(subject, seed)`.
"""

from depthkit.registry import Registry

NULLS = Registry("null model", "depthkit.utilization.nulls")
