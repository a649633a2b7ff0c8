"""Scores from three losses: of the intact model, with a visit made linear, with it skipped.

Every score takes `intact [1, ..]`, `linear [L, ..]` and `skipped [L, ..]` in nats and returns `[L, ..]`, so
that one call serves the estimate and all its bootstrap resamples. Undefined is NaN.

Shapes: L visits, S resamples.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from depthkit.utilization.result import Scalar, Series
from depthkit.utilization.statistics import Array, Sample, bootstrap, number, numbers

HARM = 1e-6
"""A skip does harm when the loss grows by more than this share of it; less is rounding."""


def loss_ratio(intact: Array, linear: Array, skipped: Array) -> Array:
    """Loss with the visit replaced by a linear map, over the intact loss."""
    return linear / intact


def excess_over_skip(intact: Array, linear: Array, skipped: Array) -> Array:
    """What the linear map loses over what skipping loses: 0 linear, 1 no better than skipping."""
    return np.where(_harms(intact, skipped), (linear - intact) / (skipped - intact), np.nan)


def log_share(intact: Array, linear: Array, skipped: Array) -> Array:
    """log(L_lin / L0) / log(L_skip / L0) within 0..1; 0 where skipping does no harm."""
    share = np.clip(np.log(linear / intact) / np.log(skipped / intact), 0.0, 1.0)
    undefined = np.isnan(intact) | np.isnan(linear) | np.isnan(skipped)
    return np.where(undefined, np.nan, np.where(_harms(intact, skipped), share, 0.0))


def _harms(intact: Array, skipped: Array) -> NDArray[np.bool_]:
    return skipped - intact > HARM * intact


Score = Callable[[Array, Array, Array], Array]
SCORES: dict[str, tuple[Score, str]] = {
    "usefulness_loss_ratio.held_out": (loss_ratio, "ratio"),
    "usefulness_excess_over_skip.held_out": (excess_over_skip, "ratio"),
    "usefulness_log_share.held_out": (log_share, "fraction"),
}


def by_visit(losses: list[Sample], seed: int) -> dict[str, Series]:
    """Every score by visit, with bootstrap intervals over the held-out sequences.

    Args:
        losses: samples of the intact, linear and skipped losses over the same sequences.
        seed: of the bootstrap.
    """
    return {
        name: _series(losses, function, seed, unit, _words(function))
        for name, (function, unit) in SCORES.items()
    }


def _series(losses: list[Sample], function: Score, seed: int, unit: str, words: str) -> Series:
    interval = bootstrap(lambda draws: _of(function, losses, draws), losses[0].sums.shape[-1], seed)
    low, high = (numbers(interval.low), numbers(interval.high)) if interval else (None, None)
    return Series(numbers(_of(function, losses)), unit, words, low, high)


def for_model(losses: list[Sample], thresholds: list[float], seed: int) -> dict[str, Scalar]:
    """The share of visits whose loss ratio exceeds each threshold, and the area under all thresholds."""

    def area(intact: Array, linear: Array, skipped: Array) -> Array:
        return log_share(intact, linear, skipped).mean(0)

    def above(threshold: float) -> Score:
        return lambda *three: _share(loss_ratio(*three), threshold)

    words = (
        "share of visits whose loss with a linear map in their place is more than {:g} times the intact one"
    )
    found = {f"useful_frac@{x:g}": _scalar(losses, above(x), seed, words.format(x)) for x in thresholds}
    found["usefulness_area"] = _scalar(losses, area, seed, f"mean over visits of {_words(log_share)}")
    return found


def _share(ratios: Array, threshold: float) -> Array:
    return np.where(np.isnan(ratios).any(0), np.nan, (ratios > threshold).mean(0))


def _scalar(losses: list[Sample], function: Score, seed: int, words: str) -> Scalar:
    interval = bootstrap(lambda draws: _of(function, losses, draws), losses[0].sums.shape[-1], seed)
    low, high = (number(interval.low), number(interval.high)) if interval else (None, None)
    return Scalar(number(_of(function, losses)), words, low, high)


def _of(function: Score, losses: list[Sample], draws: Array | None = None) -> Array:
    with np.errstate(invalid="ignore", divide="ignore"):
        return function(*(sample.means(draws) for sample in losses))


def _words(function: Score) -> str:
    return (function.__doc__ or "").rstrip(".")
