"""How large the residual stream is after each visit, and by which law it grows.

Sources: variance by layer arXiv:2502.05795, 2603.15389; norms arXiv:2505.13898.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field
from scipy import stats

from depthkit.registry import Spec
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Trace
from depthkit.utilization.result import Result, Scalar
from depthkit.utilization.statistics import Array, Number, Sample, number
from depthkit.utilization.table import both_means, series

QUANTITIES = {
    "variance": ("squared", "variance over the features of the residual state after the visit, per token"),
    "rms": ("absolute", "root mean square over the features of the state after the visit, per token"),
    "norm": ("absolute", "Euclidean norm of the residual state after the visit, per token"),
}


@PROBES.register("stream")
class Stream(Probe):
    """Variance over features, RMS and norm of the residual stream by visit, with growth laws.

    The fits are ordinary least squares of ln v on l (exponential) and on ln l (power), where v is the mean
    variance after the l-th visit, l = 1..L. Both R2 are of ln v, so they can be compared.
    """

    class Config(Spec):
        """Settings of `stream`."""

        fit_from: int = Field(2, ge=1)
        """First visit of the fits, counted from 1; the first write lands on the embedding alone."""

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._tables = {name: self.table(self.depth + 1) for name in QUANTITIES}

    def see(self, trace: Trace) -> None:
        """Add the states of one micro-batch."""
        for row, state in enumerate(trace.states):
            state = state.float()
            square = state.square().mean(-1)
            values = {
                "variance": state.var(-1, correction=0),
                "rms": square.sqrt(),
                "norm": (square * state.shape[-1]).sqrt(),
            }
            for name, value in values.items():
                self._tables[name].add(row, trace.rows, value, trace.batch.mask)

    def compute(self) -> Result:
        """Series after each visit, the embedding's values as scalars, and the fits."""
        result = Result()
        for name, (unit, definition) in QUANTITIES.items():
            table, seed = self._tables[name], self.context.seed
            result.per_visit |= both_means(name, table, seed, unit, definition, slice(1, None))
            embed = series(_first(table.sample), seed, unit, definition)
            result.scalars[f"{name}_embed.mean"] = _scalar(embed, f"{name} before the first visit")
        self._fits(result)
        return result

    def _fits(self, result: Result) -> None:
        for aggregation in ("mean", "mean_no_token0"):
            values = result.per_visit[f"variance.{aggregation}"].values
            found = growth(values, self.config.fit_from)
            if found["power_r2"] is None:
                result.skipped[f"variance_fits.{aggregation}"] = "needs 3 visits and a variance that changes"
            for name, value in found.items():
                result.scalars[f"variance_{name}.{aggregation}"] = Scalar(value, FIT_DEFINITIONS[name])


FIT_DEFINITIONS = {
    "power_exponent": "slope of ln variance on ln l",
    "power_r2": "R2 of the power-law fit of ln variance",
    "exponential_rate": "slope of ln variance on l",
    "exponential_r2": "R2 of the exponential fit of ln variance",
    "better_fit": "the law with the larger R2",
}


def growth(values: list[Number], fit_from: int = 2) -> dict[str, Number | str]:
    """Fit v_l, l = 1..L, from visit `fit_from` on; everything None where no line can be fitted."""
    depth = np.arange(1, len(values) + 1, dtype=float)[fit_from - 1 :]
    kept = np.array([np.nan if v is None else v for v in values], dtype=float)[fit_from - 1 :]
    fits: dict[str, Number | str] = dict.fromkeys(FIT_DEFINITIONS)
    if len(kept) < 3 or not np.all(kept > 0) or np.ptp(np.log(kept)) < 1e-9:
        return fits
    power, exponential = _line(np.log(depth), np.log(kept)), _line(depth, np.log(kept))
    fits["power_exponent"], fits["power_r2"] = power
    fits["exponential_rate"], fits["exponential_r2"] = exponential
    fits["better_fit"] = "power" if power[1] > exponential[1] else "exponential"
    return fits


def _line(x: Array, y: Array) -> tuple[float, float]:
    found = stats.linregress(x, y)
    return float(found.slope), float(found.rvalue**2)


def _first(sample: Sample) -> Sample:
    return Sample(sample.sums[:1], sample.counts[:1])


def _scalar(row: Any, definition: str) -> Scalar:
    low = row.low[0] if row.low else None
    high = row.high[0] if row.high else None
    return Scalar(number(row.values[0]), definition, low, high)
