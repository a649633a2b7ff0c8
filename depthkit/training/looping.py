"""How many loops every micro-batch of a training step runs, and from which noise random states come.

Both are functions of (seed, step, micro-batch), so that recomputation, a resumed run and all ranks agree.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from pydantic import Field

from depthkit.model import ModelConfig
from depthkit.model.init import stream_seed
from depthkit.model.loops.samplers import SamplerConfig, scaled_count
from depthkit.model.loops.states import Noise
from depthkit.registry import Registry, Spec

CURRICULA = Registry("loop curriculum", "depthkit.training.looping")


@CURRICULA.register("none")
class NoCurriculum:
    """The configured loop counts from the first step on."""

    equation = "1"

    def __init__(self, config: Any):
        self.config = config

    def __call__(self, progress: float) -> float:
        """Factor on loop counts at `progress` (0 to 1) through the run."""
        return 1.0


class CurriculumConfig(Spec):
    """Settings of every ramp."""

    fraction: float = Field(0.25, gt=0, le=1)
    """Part of the run in which loop counts grow."""


@CURRICULA.register("linear")
class LinearRamp:
    """Loop counts grow linearly, rounded up."""

    equation = "min(t / fraction, 1)"
    source = "arXiv:2511.07384"
    Config = CurriculumConfig

    def __init__(self, config: Any):
        self.config = config

    def __call__(self, progress: float) -> float:
        """See the equation."""
        return min(progress / self.config.fraction, 1.0)


@CURRICULA.register("one_minus_sqrt")
class OneMinusSqrt:
    """Loop counts grow slowly at first, rounded up."""

    equation = "1 - sqrt(1 - min(t / fraction, 1))"
    source = "arXiv:2511.07384"

    class Config(CurriculumConfig):
        """Settings of `one_minus_sqrt`."""

    def __init__(self, config: Any):
        self.config = config

    def __call__(self, progress: float) -> float:
        """See the equation."""
        return 1.0 - math.sqrt(1.0 - min(progress / self.config.fraction, 1.0))


def loop_counts(
    model: ModelConfig, seed: int, step: int, micro: int, scale: float = 1.0
) -> dict[str, int] | None:
    """Loop count of every segment whose count is not simply its configured number; None when there is none.

    Args:
        model: the model.
        seed: of the run.
        step: optimiser step, from 1.
        micro: number of the micro-batch within the step.
        scale: of the curriculum, in (0, 1].
    """
    rng = np.random.default_rng(stream_seed(seed, "loops", step, micro))
    counts = {}
    for segment in model.segments:
        if isinstance(segment.loops, SamplerConfig):
            counts[segment.name] = segment.loops.draw(rng, scale)
        elif scale < 1 and segment.loops > 1:
            counts[segment.name] = scaled_count(segment.loops, scale)
    return counts or None


def noise(seed: int, step: int, micro: int, rows: tuple[int, int] | None = None) -> Noise:
    """Noise of one micro-batch, or of some of its `rows` (the first one, how many there are in all)."""
    return Noise(stream_seed(seed, "noise", step, micro), rows=rows)
