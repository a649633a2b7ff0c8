"""Learning-rate schedules: pure functions of the step, so that resuming needs no state but the step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from pydantic import Field

from depthkit.registry import Registry, Spec

SCHEDULES = Registry("schedule", "depthkit.training.schedule")


class Schedule(ABC):
    """What the peak learning rate is multiplied by at each step, warm-up included.

    Args:
        config: the settings of the kind.
        total: optimiser steps of the run; steps are numbered 1 .. total.

    Raises:
        ValueError: phases that do not fit into `total`.
    """

    class Config(Spec):
        """Settings that all schedules share."""

        warmup: int | None = Field(None, ge=0)
        """Steps of linear warm-up; null means the smaller of 100 and a tenth of the run."""
        final: float = Field(0.1, ge=0, le=1)
        """Fraction of the peak that the last step is left with."""

    def __init__(self, config: Config, total: int):
        self.config = config
        self.total = total
        self.warmup = min(100, total // 10) if config.warmup is None else config.warmup
        if self.warmup >= total:
            raise ValueError(f"schedule.warmup: {self.warmup} does not fit into {total} steps; use less")

    def __call__(self, step: int) -> float:
        """The multiplier of update number `step`, counted from 1."""
        if step <= self.warmup:
            return step / self.warmup
        return self.after_warmup(step)

    @abstractmethod
    def after_warmup(self, step: int) -> float:
        """The multiplier of a step past the warm-up."""

    def _between(self, start: int, step: int) -> float:
        """How far `step` is from `start` (0) to the end of the run (1)."""
        return (step - start) / (self.total - start)


@SCHEDULES.register("cosine")
class Cosine(Schedule):
    """Half a cosine from the peak down to `final` (arXiv 1608.03983, without restarts)."""

    def after_warmup(self, step: int) -> float:
        """The multiplier of a step past the warm-up."""
        wave = 0.5 * (1 + math.cos(math.pi * self._between(self.warmup, step)))
        return self.config.final + (1 - self.config.final) * wave


@SCHEDULES.register("linear")
class Linear(Schedule):
    """A straight line from the peak down to `final`."""

    def after_warmup(self, step: int) -> float:
        """The multiplier of a step past the warm-up."""
        return 1 - (1 - self.config.final) * self._between(self.warmup, step)


@SCHEDULES.register("wsd")
class WarmupStableDecay(Schedule):
    """Warm-up, a plateau at the peak, then a straight line down to `final` (arXiv 2404.06395)."""

    class Config(Schedule.Config):
        """Settings of the plateau."""

        decay: float = Field(0.2, gt=0, le=1)
        """Fraction of all steps that the decay takes, counted back from the end."""

    def __init__(self, config: Config, total: int):
        super().__init__(config, total)
        self.decay_from = total - max(1, round(config.decay * total))
        if self.decay_from < self.warmup:
            raise ValueError(
                f"schedule.decay: {total - self.decay_from} steps of decay and {self.warmup} of warm-up "
                f"do not fit into {total} steps; lower one of them"
            )

    def after_warmup(self, step: int) -> float:
        """The multiplier of a step past the warm-up."""
        return 1 - (1 - self.config.final) * max(0.0, self._between(self.decay_from, step))
