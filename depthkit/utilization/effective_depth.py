"""Effective depth: how many layers do the work. A family of numbers: one would hide that they disagree.

Every function takes effects with visits on the last axis (for the lens and the exits: the L + 1 states), so
that one call serves the estimate and all its bootstrap resamples. Undefined is NaN.

Sources: depth score arXiv:2505.13898 (0-based visits); participation ratio and entropy numbers are the usual
effective counts of a distribution.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from depthkit.utilization.result import Result, Scalar, Series
from depthkit.utilization.statistics import Array, Number, Sample, bootstrap, number

Statistic = Callable[[Array], Array]
ABLATION = "ablation_delta_nats.skip"
LENS = "lens_kl_final_to_exit_nats.mean"
EXIT = "exit_accuracy.mean"
GREEDY = "greedy_drop_delta_nats.after_removal"
LENS_TOLERANCE = 0.1
EXIT_SHARE = 0.95
EFFECTS = {
    "ablation": ABLATION,
    "mixer_ablation": "ablation_delta_nats.skip_mixer",
    "ffn_ablation": "ablation_delta_nats.skip_ffn",
    "mean_ablation": "ablation_delta_nats.mean_write",
    "resample_ablation": "ablation_delta_nats.resampled_write",
    "output": "output_effect_l2.mean",
}
"""Effects with a per-sequence sample, by the name that their summaries carry."""
LATER_EFFECTS = {
    "causal": "later_effect.ratio_of_means",
    "future": "future_effect.ratio_of_means",
    "local": "local_effect.ratio_of_means",
}
"""Effects on later visits; the last visit has none."""


def depth_score(effects: Array) -> Array:
    """Centre of mass of the effects over visits 0..L-1."""
    p = _distribution(effects)
    return (p * np.arange(p.shape[-1])).sum(-1)


def depth_score_relative(effects: Array) -> Array:
    """`depth_score` / (L - 1): 0 all in the first visit, 1 all in the last; undefined for one visit."""
    last = effects.shape[-1] - 1
    return depth_score(effects) / last if last else np.full(effects.shape[:-1], np.nan)


def n_eff_entropy(effects: Array) -> Array:
    """exp of the entropy of the effects: L when all visits matter alike, 1 when one does everything."""
    p = _distribution(effects)
    return np.exp(-(p * np.log(np.where(p > 0, p, 1.0))).sum(-1))


def n_eff_pr(effects: Array) -> Array:
    """Participation ratio (sum e)^2 / sum e^2."""
    return 1.0 / np.square(_distribution(effects)).sum(-1)


def _distribution(effects: Array) -> Array:
    positive = np.clip(effects, 0.0, None)
    with np.errstate(invalid="ignore"):
        return positive / positive.sum(-1, keepdims=True)


def ablate_frac(nats: float) -> Statistic:
    """Share of visits that cost more than `nats` when skipped alone."""
    return lambda deltas: np.where(np.isnan(deltas).any(-1), np.nan, (deltas > nats).mean(-1))


def first_settled(good: NDArray[np.bool_]) -> Array:
    """First state, counted from the embedding (0), from which on all are good; NaN if the last is not."""
    settled = np.flip(np.cumprod(np.flip(good, -1), -1), -1).astype(bool)
    return np.where(settled.any(-1), settled.argmax(-1), np.nan).astype(float)


def lens_depth(divergence: Array) -> Array:
    """Share of the visits after which KL(p_final || p_exit) stays under the tolerance."""
    settled = first_settled(divergence < LENS_TOLERANCE) / (divergence.shape[-1] - 1)
    return np.where(np.isnan(divergence).any(-1), np.nan, settled)


def exit_depth(accuracy: Array) -> Array:
    """Visits needed to reach 95 % of the final accuracy; undefined if that is 0."""
    final = accuracy[..., -1:]
    reached = (accuracy >= EXIT_SHARE * final).argmax(-1).astype(float)
    return np.where(final[..., 0] > 0, reached, np.nan)


def droppable(nats: float) -> Statistic:
    """Most visits that go together, greedily, for no more than `nats`.

    Takes the loss difference after each removal, NaN from where removing stopped; undefined when it stopped
    before any loss was over `nats`.
    """

    def statistic(curve: Array) -> Array:
        removals = np.arange(1, curve.shape[-1] + 1)
        most = np.where(curve <= nats, removals, 0).max(-1).astype(float)
        stopped = np.isnan(curve).any(-1) & ~(curve > nats).any(-1)
        return np.where(stopped, np.nan, most)

    statistic.__doc__ = f"most visits that go together, greedily, for no more than {nats} nats a token"
    return statistic


SHAPE: dict[str, Statistic] = {
    "depth_score": depth_score,
    "depth_score_relative": depth_score_relative,
    "n_eff_entropy": n_eff_entropy,
    "n_eff_pr": n_eff_pr,
}
"""Summaries of any effect, named `<summary>.<effect>`."""

SAMPLED: dict[str, tuple[str, Statistic]] = {
    **{
        f"{name}.{effect}": (source, statistic)
        for effect, source in EFFECTS.items()
        for name, statistic in SHAPE.items()
    },
    "ablate_frac@0.01": (ABLATION, ablate_frac(0.01)),
    "ablate_frac@0.05": (ABLATION, ablate_frac(0.05)),
    f"lens_depth@{LENS_TOLERANCE}": (LENS, lens_depth),
    "exit_depth@95": (EXIT, exit_depth),
    "droppable@0.01": (GREEDY, droppable(0.01)),
    "droppable@0.05": (GREEDY, droppable(0.05)),
}
"""Numbers with a per-sequence sample behind them, and so an interval."""


def family(result: Result, seed: int) -> dict[str, Scalar]:
    """Every effective depth that the probes' results allow, under its own name."""
    scalars = {
        name: _sampled(result.samples[source], statistic, seed)
        for name, (source, statistic) in SAMPLED.items()
        if source in result.samples
    }
    if ABLATION in result.samples:
        deltas = result.samples[ABLATION].means()
        words = "visits whose skip lowers the loss; their effect counts as 0 in the summaries"
        scalars["ablation_negative_count"] = Scalar(int((deltas < 0).sum()), words)
    for effect, source in LATER_EFFECTS.items():
        if source in result.per_visit:
            scalars |= _of_later(effect, result.per_visit[source])
    return scalars


def _of_later(effect: str, series: Series) -> dict[str, Scalar]:
    # The last visit has no later one, so its effect is undefined and has no weight.
    values = np.array([0.0 if value is None else value for value in series.values])
    return {
        f"{name}.{effect}": Scalar(number(statistic(values)), _summary(statistic))
        for name, statistic in SHAPE.items()
    }


def _sampled(sample: Sample, statistic: Statistic, seed: int) -> Scalar:
    value = number(statistic(sample.means()))
    interval = bootstrap(lambda draws: statistic(_resampled(sample, draws)), sample.sums.shape[-1], seed)
    low, high = (number(interval.low), number(interval.high)) if interval else (None, None)
    return Scalar(value, _summary(statistic), low, high)


def paired(first: Sample, second: Sample, statistic: Statistic, seed: int) -> dict[str, Number]:
    """A statistic of `second` minus that of `first`, over the same resampled sequences, with its interval."""

    def difference(draws: Array) -> Array:
        return statistic(_resampled(second, draws)) - statistic(_resampled(first, draws))

    value = number(statistic(second.means()) - statistic(first.means()))
    interval = bootstrap(difference, first.sums.shape[-1], seed)
    low, high = (number(interval.low), number(interval.high)) if interval else (None, None)
    return {"value": value, "low": low, "high": high}


def _resampled(sample: Sample, draws: Array) -> Array:
    means = sample.means(draws)
    return means.T if means.ndim == 2 else means[None]


def _summary(statistic: Statistic) -> str:
    return (
        statistic.__doc__ or "share of visits that cost more than this many nats when skipped alone"
    ).split("\n")[0]
