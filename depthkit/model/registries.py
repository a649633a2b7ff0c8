"""The axes a model is composed along; each kind is one file in the axis' package."""

from depthkit.registry import Registry

EMBEDS = Registry("embed", "depthkit.model.embed")
HEADS = Registry("head", "depthkit.model.head")
MIXERS = Registry("mixer", "depthkit.model.mixers")
FFNS = Registry("ffn", "depthkit.model.ffns")
NORMS = Registry("norm", "depthkit.model.norms")
REGULATORS = Registry("regulator", "depthkit.model.regulators")
STREAMS = Registry("stream", "depthkit.model.streams")
INITS = Registry("init", "depthkit.model.init")
CHECKPOINTING = Registry("activation checkpointing", "depthkit.model.checkpointing")
