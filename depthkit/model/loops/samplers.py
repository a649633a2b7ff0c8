"""How many loops a training step runs: a number, or a distribution that is sampled for every micro-batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from depthkit.config import Component
from depthkit.model.loops.registries import LOOPS
from depthkit.registry import Spec


class LoopCount(Component):
    """Annotation of `loops`: a number of 1 or more, or a sampler."""

    def __init__(self) -> None:
        super().__init__(LOOPS)

    def validate(self, value: Any) -> Any:
        """The number as it is, or the validated sampler.

        Raises:
            ValueError: below 1, no number, or a sampler that is not known.
        """
        if isinstance(value, int) and not isinstance(value, bool):
            if value < 1:
                raise ValueError("Input should be greater than or equal to 1")
            return value
        if isinstance(value, float | bool):
            raise ValueError("Input should be a whole number of 1 or more, or a sampler")
        return super().validate(value)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        found = super().__get_pydantic_json_schema__(schema, handler)
        return {"anyOf": [{"type": "integer", "minimum": 1}, *found["anyOf"]]}


class SamplerConfig(Spec):
    """Settings of every sampler."""

    backprop: int | None = Field(None, ge=1)
    """Differentiate only this many of the last loops; the earlier ones run without gradient. Null: all."""

    @property
    def nominal(self) -> int:
        """Loops in evaluation, in accounting and in depth indices."""
        raise AssertionError("a sampler says its nominal count")

    @property
    def longest(self) -> int:
        """The most loops a training step can have; tables by loop have as many rows."""
        raise AssertionError("a sampler says its longest count")

    def draw(self, rng: np.random.Generator, scale: float = 1.0) -> int:
        """One loop count; `scale` in (0, 1] shrinks the distribution (a curriculum)."""
        raise AssertionError("a sampler implements draw")


def scaled_count(count: int, scale: float) -> int:
    """`count` shrunk by a curriculum: rounded up, at least 1."""
    return max(1, math.ceil(round(scale * count, 9)))


@LOOPS.register("fixed")
class Fixed:
    """Always the same count, possibly differentiated in part."""

    equation = "R = mean"
    source = "arXiv:1807.03819"

    class Config(SamplerConfig):
        """Settings of `fixed`."""

        mean: int = Field(ge=1)
        """The loop count."""

        @property
        def nominal(self) -> int:
            """The count."""
            return self.mean

        @property
        def longest(self) -> int:
            """The count."""
            return self.mean

        def draw(self, rng: np.random.Generator, scale: float = 1.0) -> int:
            """The count, shrunk by the curriculum."""
            return scaled_count(self.mean, scale)


@LOOPS.register("uniform")
class Uniform:
    """Every count from `min` to `max` alike."""

    equation = "R ~ U{min, ..., max}"
    source = "arXiv:2502.05171 (a schedule of its code)"

    class Config(SamplerConfig):
        """Settings of `uniform`."""

        min: int = Field(1, ge=1)
        """Fewest loops."""
        max: int = Field(ge=1)
        """Most loops."""
        mean: int | None = Field(None, ge=1)
        """Loops in evaluation; null is the middle of the range, rounded up."""

        @model_validator(mode="after")
        def _ordered(self) -> Uniform.Config:
            if self.min > self.max:
                raise ValueError(f"min ({self.min}) must not exceed max ({self.max})")
            if self.mean is not None and not self.min <= self.mean <= self.max:
                raise ValueError(f"mean ({self.mean}) must lie between min ({self.min}) and max ({self.max})")
            return self

        @property
        def nominal(self) -> int:
            """The middle of the range, or what `mean` says."""
            return self.mean or (self.min + self.max + 1) // 2

        @property
        def longest(self) -> int:
            """`max`."""
            return self.max

        def draw(self, rng: np.random.Generator, scale: float = 1.0) -> int:
            """A count from the range, its upper end shrunk by the curriculum."""
            high = scaled_count(self.max, scale)
            return int(rng.integers(min(self.min, high), high, endpoint=True))


@LOOPS.register("poisson_lognormal")
class PoissonLogNormal:
    """A Poisson count whose rate is log-normal, as Huginn trains; heavy-tailed, cut at `max`."""

    equation = (
        "R = min(1 + Poisson(rate), max), rate ~ LogNormal(ln m - sigma^2/2, sigma), m = max(mean, backprop)"
    )
    source = "arXiv:2502.05171, with the centre its code uses"

    class Config(SamplerConfig):
        """Settings of `poisson_lognormal`."""

        mean: int = Field(ge=1)
        """Loops in evaluation; training has max(mean, backprop) + 1 on average, as published."""
        sigma: float = Field(0.5, gt=0)
        """Spread of the log-normal rate."""
        max: int | None = Field(None, ge=1)
        """Most loops; null is 4 x the larger of mean and backprop."""

        @model_validator(mode="after")
        def _reaches_its_mean(self) -> PoissonLogNormal.Config:
            if self.max is not None and self.max < self.mean:
                raise ValueError(f"max ({self.max}) must not be below mean ({self.mean}), which is evaluated")
            return self

        @property
        def nominal(self) -> int:
            """`mean`."""
            return self.mean

        @property
        def longest(self) -> int:
            """The cut."""
            return self.max or 4 * max(self.mean, self.backprop or 1)

        def draw(self, rng: np.random.Generator, scale: float = 1.0) -> int:
            """One count; the curriculum shrinks the centre, not below `backprop`."""
            centre = max(scaled_count(self.mean, scale), self.backprop or 1)
            rate = rng.lognormal(math.log(centre) - self.sigma**2 / 2, self.sigma)
            return min(1 + int(rng.poisson(rate)), self.longest)
