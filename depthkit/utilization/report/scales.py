"""Scales by unit, the same for every report, so that pictures of two models can be held side by side.

A scale grows, in round steps, only where a report's numbers do not fit in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from depthkit.utilization.statistics import Array, Number

LINEAR_BELOW = 0.01
"""Where a symlog scale, which is logarithmic both ways, turns linear."""


@dataclass(frozen=True)
class Scale:
    """How numbers are drawn.

    Attributes:
        kind: linear, log, or symlog (logarithmic both ways, linear near zero).
        limits: ends of the axis; None takes them from the numbers, zero included.
        signed: zero is the middle, so colours diverge from it.
        bounded: the limits are those of the quantity itself, so a matrix's colours keep to them.
    """

    kind: str = "linear"
    limits: tuple[float, float] | None = None
    signed: bool = False
    bounded: bool = False

    def holding(self, values: Iterable[Number]) -> Scale:
        """The scale, grown in round steps until it holds the values."""
        known = [float(v) for v in values if v is not None and math.isfinite(v)]
        known = [v for v in known if v > 0] if self.kind == "log" else known
        if not known:
            return replace(self, limits=self.limits or (0.0, 1.0))
        low, high = self.limits or ((1.0, 1.0) if self.kind == "log" else (0.0, 0.0))
        step = _decade if self.kind == "log" else _round
        ends = (low if min(known) >= low else step(min(known), -1), max(high, 0.0))
        ends = (ends[0], high if max(known) <= high else step(max(known), 1))
        return replace(self, limits=ends if ends[0] < ends[1] else (ends[0], ends[0] + 1.0))


FRACTION = Scale(limits=(0.0, 1.0), bounded=True)
DELTA = Scale("symlog", (-0.1, 10.0), signed=True, bounded=True)
CHANGE = Scale(limits=(-0.5, 0.5), signed=True, bounded=True)
SCALES = {
    "fraction": FRACTION,
    "probability": FRACTION,
    "similarity": FRACTION,
    "ratio": FRACTION,
    "cosine": Scale(limits=(-1.0, 1.0), signed=True, bounded=True),
    "angle / pi": Scale(limits=(0.0, 0.5), bounded=True),
    "1 - cosine": Scale("log", (1e-4, 1.0)),
    "squared": Scale("log", (1e-4, 1e4)),
    "absolute": Scale("log", (1e-2, 1e2)),
    "nats": Scale(limits=(0.0, 5.0)),
    "nats / token": Scale(limits=(0.0, 5.0)),
    "nats / unit": Scale("log", (1e-4, 1e0)),
    "nats / unit^2": Scale("log", (1e-4, 1e0)),
}
"""By unit; a unit that is not here starts at zero and ends with the numbers."""
DELTA_COLOURS = (-1.0, 1.0)
"""Ends of the colours of a symlog scale, nats."""


def scale_of(metric: str, unit: str) -> Scale:
    """The scale of a metric: differences have their own, largest ratios of tokens have no limit."""
    if "delta" in metric:
        return DELTA if unit.startswith("nats") else CHANGE
    return Scale() if "max_all_tokens" in metric else SCALES.get(unit, Scale())


def colour_limits(scale: Scale, values: Array) -> tuple[float, float]:
    """Ends of a matrix's colours: fixed where the scale is bounded, so what is beyond has the last colour."""
    if scale.kind == "symlog":
        return DELTA_COLOURS
    if scale.bounded and scale.limits is not None:
        return scale.limits
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    return (low, high) if low < high else (low, low + 1.0)


def symlog(values: Array) -> Array:
    """sign(v) log10(1 + |v| / 0.01): what is drawn on a symlog scale. NaN stays NaN."""
    return np.sign(values) * np.log10(1.0 + np.abs(values) / LINEAR_BELOW)


def symlog_ticks(low: float, high: float) -> list[float]:
    """Zero and powers of ten between the ends."""
    powers = [10.0**k for k in range(-2, 7)]
    return [tick for tick in (*(-p for p in reversed(powers)), 0.0, *powers) if low <= tick <= high]


def _round(value: float, direction: int) -> float:
    """1, 2 or 5 times a power of ten, away from zero; 0 where the direction leads there."""
    if value == 0 or (value > 0) != (direction > 0):
        return 0.0
    size = abs(value)
    power = 10.0 ** math.floor(math.log10(size))
    steps = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
    best = next(step * power for step in steps if step * power >= size * (1 - 1e-9))
    return math.copysign(best, value)


def _decade(value: float, direction: int) -> float:
    return 10.0 ** (math.ceil if direction > 0 else math.floor)(math.log10(value))
