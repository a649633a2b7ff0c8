"""Families of Hugging Face models that depthkit can say in its own terms, one registered file a group."""

from __future__ import annotations

from depthkit.registry import Registry

FAMILIES = Registry("Hugging Face family", "depthkit.interop.families")
"""Named as `model_type` in a Hugging Face config."""
