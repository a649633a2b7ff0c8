"""Means over tokens, and bootstrap intervals over sequences.

Tokens of one sequence are not independent, so sequences are what is resampled. A statistic is a function
of how often each sequence was drawn, which makes a resample one row of a matrix product.

Shapes: R rows (visits, usually), N sequences, S resamples.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

RESAMPLES = 1000
LEVEL = 0.95

Array = NDArray[np.float64]
Number = float | int | None


@dataclass(frozen=True)
class Interval:
    """Percentile bootstrap interval and standard error; NaN where undefined."""

    low: Array
    high: Array
    error: Array


@dataclass(frozen=True)
class Sample:
    """Sums over the tokens of each sequence and how many tokens went in: both [R, N]."""

    sums: Array
    counts: Array

    def means(self, draws: Array | None = None) -> Array:
        """Token-weighted means [R], or [R, S] when sequences are drawn `draws` [S, N] times; NaN if empty."""
        draws = np.ones((1, self.sums.shape[-1])) if draws is None else draws
        with np.errstate(invalid="ignore", divide="ignore"):
            means = (self.sums @ draws.T) / (self.counts @ draws.T)
        return means[..., 0] if len(draws) == 1 else means

    def interval(self, seed: int) -> Interval | None:
        """Bootstrap interval of the means; None with fewer than two sequences."""
        return bootstrap(self.means, self.sums.shape[-1], seed)


def bootstrap(statistic: Callable[[Array], Array], num_sequences: int, seed: int) -> Interval | None:
    """95 % interval of a statistic over resampled sequences (scipy, percentile method, 1000 resamples).

    Args:
        statistic: [S, N] draw counts -> [..., S].
        num_sequences: N; below 2 there is no interval.
        seed: the same seed draws the same sequences, so intervals of one report are comparable.
    """
    if num_sequences < 2:
        return None

    def of_indices(indices: Any, axis: int = -1) -> Array:
        return statistic(draw_counts(indices))

    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        # Where some resample is undefined scipy warns and gives NaN, which is reported as null.
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        found = stats.bootstrap(
            (np.arange(num_sequences),),
            of_indices,
            vectorized=True,
            n_resamples=RESAMPLES,
            confidence_level=LEVEL,
            method="percentile",
            rng=np.random.default_rng(seed),
        )
    interval = found.confidence_interval
    return Interval(np.asarray(interval.low), np.asarray(interval.high), np.asarray(found.standard_error))


def draw_counts(indices: Any) -> Array:
    """How often each of N sequences occurs in each row of drawn indices [S, N]."""
    indices = np.atleast_2d(indices).astype(np.int64)
    counts = np.zeros(indices.shape)
    np.add.at(counts, (np.arange(len(indices))[:, None], indices), 1.0)
    return counts


def paired_difference(first: Sample, second: Sample, seed: int) -> dict[str, Number]:
    """Mean of `second` minus mean of `first` over the same resampled sequences, with its interval."""
    interval = bootstrap(lambda draws: second.means(draws) - first.means(draws), first.sums.shape[-1], seed)
    value = float((second.means() - first.means())[0])
    low, high = (interval.low[0], interval.high[0]) if interval else (None, None)
    return {"value": number(value), "low": number(low), "high": number(high)}


def mean_defined(values: Array) -> Array:
    """Mean over the last axis of what is not NaN; NaN where nothing is."""
    defined = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(defined, values, 0.0).sum(-1) / defined.sum(-1)


def number(value: Any) -> Number:
    """A plain number, or None for what is undefined (None, NaN, infinite)."""
    if value is None or not math.isfinite(value):
        return None
    return float(value)


def numbers(values: Any) -> list[Number]:
    """`number` of each."""
    return [number(v) for v in np.asarray(values, dtype=float)]
