"""Paired comparisons between rungs, put into words that follow from the numbers.

Many comparisons find some differences by chance alone. p-values of paired t-tests are therefore corrected
together by the method of Benjamini and Hochberg (1995): of the differences that are named at `ALPHA`, a share
of at most `ALPHA` is expected to be there by chance. What is left is called tied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

from depthkit.ladder.axes import short_name

LEVEL = 0.95
ALPHA = 0.05
CORRECTION = "Benjamini-Hochberg"


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


def p_value(differences: Sequence[float]) -> float | None:
    """Two-sided p of a paired t-test that the mean difference is 0; None with fewer than two."""
    if len(differences) < 2:
        return None
    if np.ptp(differences) == 0:  # no spread at all: the test divides by zero
        return 1.0 if differences[0] == 0 else 0.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def corrected(values: Sequence[float | None]) -> list[float | None]:
    """p-values corrected for their number (Benjamini-Hochberg); None stays None and does not count."""
    known = [value for value in values if value is not None]
    found = iter(stats.false_discovery_control(known, method="bh")) if known else iter(())
    return [None if value is None else float(next(found)) for value in values]


@dataclass(frozen=True)
class Verdict:
    """One comparison: `difference` is (value - baseline) in nats, paired by replicate; negative is better.

    `p` is that of the paired t-test, `q` the same after the correction for all comparisons of the ladder.
    """

    axis: str
    value: Any
    baseline: Any
    where: dict[str, Any]
    difference: Interval
    p: float | None = None
    q: float | None = None

    @property
    def word(self) -> str:
        """`lower`, `higher` or `tied` loss; `undecided` without replicates."""
        if self.q is None:
            return "undecided"
        return "tied" if self.q > ALPHA else "lower" if self.difference.mean < 0 else "higher"

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
        span += "" if self.q is None else f", corrected p {shown_p(self.q)}"
        if self.word == "tied":
            return f"{head}{value} and {baseline} are tied ({found.mean:+.3f} nat, {span})."
        return f"{head}{value} ends {abs(found.mean):.3f} nat {self.word} than {baseline} ({span})."


def shown_p(value: float) -> str:
    """`0.032`, or `< 0.001`."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def correct(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts with `q`, corrected for how many there are."""
    return [replace(v, q=q) for v, q in zip(verdicts, corrected([v.p for v in verdicts]), strict=True)]


def differences(first: Mapping[Any, float], second: Mapping[Any, float]) -> list[float]:
    """second - first, for the replicates that both have."""
    return [second[key] - first[key] for key in first if key in second]


def paired(first: Mapping[Any, float], second: Mapping[Any, float]) -> Interval | None:
    """Mean of `differences` with its interval; None where no replicate is shared."""
    found = differences(first, second)
    return interval(found) if found else None
