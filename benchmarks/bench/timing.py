"""Times that can be compared: candidates take turns, process CPU time, medians of paired ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Clock = Callable[[], float]
Times = dict[str, list[float]]
"""Seconds of every round, by candidate."""


class Spread(NamedTuple):
    """A median and the quartiles around it."""

    low: float
    median: float
    high: float


class Line(NamedTuple):
    """`y = intercept + slope x`, fitted to relative errors; `deviation` is the largest of them."""

    slope: float
    intercept: float
    deviation: float


def interleave(
    steps: Mapping[str, Callable[[], Any]],
    rounds: int,
    warm_up: int = 1,
    clock: Clock = time.process_time,
) -> Times:
    """Take `rounds` rounds of every step in turn, A, B, A, B, after `warm_up` that do not count."""
    times: Times = {name: [] for name in steps}
    for number in range(warm_up + rounds):
        for name, step in steps.items():
            began = clock()
            step()
            if number >= warm_up:
                times[name].append(clock() - began)
            else:
                clock()
    return times


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles; of one value, that value."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Spread of `above / below`, each pair from the same round."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def total(*parts: Sequence[float]) -> list[float]:
    """The sum of several candidates' times, round by round."""
    return [sum(together) for together in zip(*parts, strict=True)]


def line(xs: Sequence[float], ys: Sequence[float]) -> Line:
    """The line through at least two points that has the least squared relative errors."""
    x, y = np.asarray(xs, float), np.asarray(ys, float)
    slope, intercept = np.polyfit(x, y, 1, w=1 / y)
    return Line(float(slope), float(intercept), float(np.abs((intercept + slope * x) / y - 1).max()))
