"""What a paper's own aggregation is: numbers for the whole model from what the probes found.

Shapes: L visits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from depthkit.registry import Spec
from depthkit.utilization.result import Result, Scalar
from depthkit.utilization.statistics import Array, mean_defined, number


@dataclass(frozen=True)
class Found:
    """What the probes found, for a paper to make its numbers of.

    Attributes:
        result: of all probes.
        loss: of the intact model, nats a token.
        width: of the residual stream.
        depth: number of visits.
    """

    result: Result
    loss: float
    width: int
    depth: int

    def series(self, name: str) -> Array:
        """A metric by visit, NaN where undefined; all NaN where it was not measured."""
        found = self.result.per_visit.get(name)
        values = [None] * self.depth if found is None else found.values
        return np.array([np.nan if value is None else value for value in values], dtype=float)

    def matrix(self, name: str) -> Array:
        """A matrix by name; all NaN `[L, L]` where it was not measured."""
        found = self.result.matrices.get(name)
        return np.full((self.depth, self.depth), np.nan) if found is None else found.values

    def scalar(self, name: str) -> float:
        """A number of the whole model; NaN where undefined."""
        found = self.result.scalars.get(name)
        return float("nan") if found is None or not isinstance(found.value, (int, float)) else found.value


class Paper(ABC):
    """One paper's choice of probes, and its aggregations under names that start with the paper's.

    `source` is where they are defined; `left_out` maps what depthkit does not measure to the reason.
    """

    class Config(Spec):
        """No settings."""

    source: ClassVar[str]
    probes: ClassVar[tuple[Any, ...]]
    left_out: ClassVar[dict[str, str]] = {}

    def __init__(self, config: Any):
        self.config = config

    @abstractmethod
    def aggregate(self, found: Found) -> dict[str, Scalar]:
        """The paper's numbers by name; undefined is None."""


def mean(values: Array) -> float:
    """Mean of what is defined; NaN where nothing is."""
    return float(mean_defined(np.asarray(values, dtype=float).ravel()))


def share(values: Array, above: NDArray[np.bool_]) -> float:
    """Share of the defined values for which `above` holds; NaN where nothing is defined."""
    defined = ~np.isnan(values)
    return float((above & defined).sum() / defined.sum()) if defined.any() else float("nan")


def by_source(effects: Array) -> Array:
    """Mean effect of every visit on the later ones `[L]`; NaN for the last, which has none."""
    return mean_defined(effects)


def scalar(value: float, definition: str) -> Scalar:
    """A number or None, with what it means."""
    return Scalar(number(value), definition)
