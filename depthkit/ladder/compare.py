"""Paired comparisons between rungs, put into words that follow from the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from depthkit.ladder.axes import short_name

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over replicates with a Student-t interval; the ends are None with fewer than two replicates."""

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def half_width(self) -> float | None:
        """Half of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % Student-t interval of independent replicates."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Interval(mean, None, None, len(values))
    if np.ptp(values) == 0:
        return Interval(mean, mean, mean, len(values))
    ends = stats.ttest_1samp(values, 0.0).confidence_interval(LEVEL)
    return Interval(mean, float(ends.low), float(ends.high), len(values))


@dataclass(frozen=True)
class Verdict:
    """One comparison: `difference` is (value - baseline) in nats, paired by replicate; negative is better."""

    axis: str
    value: Any
    baseline: Any
    where: dict[str, Any]
    difference: Interval

    @property
    def word(self) -> str:
        """`lower`, `higher` or `tied` loss; `undecided` without an interval."""
        low, high = self.difference.low, self.difference.high
        if low is None or high is None:
            return "undecided"
        return "lower" if high < 0 else "higher" if low > 0 else "tied"

    def sentence(self) -> str:
        """The comparison in words, with its interval and the number of replicates."""
        place = ", ".join(f"{short_name(axis)} {label}" for axis, label in self.where.items())
        value, baseline = (
            f"{short_name(self.axis)} {label}" if not isinstance(label, str) else label
            for label in (self.value, self.baseline)
        )
        found, count = self.difference, self.difference.count
        head = f"At {place}: " if place else ""
        if found.low is None:
            return (
                f"{head}{value} minus {baseline} is {found.mean:+.3f} nat "
                "(one replicate, so no interval and no verdict)."
            )
        span = f"95 % interval {found.low:+.3f} to {found.high:+.3f}, {count} paired replicates"
        if self.word == "tied":
            return f"{head}{value} and {baseline} are tied ({found.mean:+.3f} nat, {span})."
        return f"{head}{value} ends {abs(found.mean):.3f} nat {self.word} than {baseline} ({span})."


def paired(first: dict[Any, float], second: dict[Any, float]) -> Interval | None:
    """Differences second - first over the replicates both have; None without any."""
    shared = [key for key in first if key in second]
    return interval([second[key] - first[key] for key in shared]) if shared else None
