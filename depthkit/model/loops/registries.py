"""The axes of a looped segment."""

from depthkit.registry import Registry

LOOPS = Registry("loop sampler", "depthkit.model.loops.samplers")
INJECTS = Registry("injection", "depthkit.model.loops.injects")
STATES = Registry("initial state", "depthkit.model.loops.states")
CARRIES = Registry("carry", "depthkit.model.loops.carries")
READOUTS = Registry("loop read-out", "depthkit.model.loops.readouts")
