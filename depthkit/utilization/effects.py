"""How much one visit's alteration changes a later one: sums by pair of visits and sequence.

Shapes: B sequences, T positions, D width, L visits, N sequences, S resamples.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from depthkit.utilization.accumulators import Largest, Total
from depthkit.utilization.result import Matrix, Result, Series
from depthkit.utilization.statistics import Array, bootstrap, mean_defined, numbers
from depthkit.utilization.writes import SMALLEST


class PairTable:
    """Ratios of sums for every (source s, later visit l): `[L, L, N]` numerators and denominators."""

    def __init__(self, depth: int, num_sequences: int):
        self._tops = Total(depth, depth, num_sequences)
        self._bottoms = Total(depth, depth, num_sequences)

    def add(self, pair: tuple[int, int], rows: slice, top: Tensor, bottom: Tensor, mask: Tensor) -> None:
        """Add a micro-batch: both `[B, T]`, where mask `[B, T]`."""
        sums = torch.stack((top, bottom)).double().where(mask, 0.0).sum(-1).cpu().numpy()
        self._tops.add((*pair, rows), sums[0])
        self._bottoms.add((*pair, rows), sums[1])

    def matrix(self) -> Array:
        """`[L, L]` ratios; NaN where undefined."""
        return _ratio(self._tops.values.sum(-1), self._bottoms.values.sum(-1))

    def later(self, seed: int, unit: str, definition: str) -> Series:
        """Mean of each row's defined ratios, with intervals."""
        # Row by row: all rows at once would be L x L x S numbers.
        rows = [self._row(row, seed) for row in range(len(self._tops.values))]
        values, lows, highs = (numbers(column) for column in zip(*rows, strict=True))
        alone = self._tops.values.shape[-1] < 2
        return Series(values, unit, definition, None if alone else lows, None if alone else highs)

    def _row(self, row: int, seed: int) -> tuple[float, float, float]:
        tops, bottoms = self._tops.values[row], self._bottoms.values[row]

        def statistic(draws: Array) -> Array:
            return mean_defined(_ratio(tops @ draws.T, bottoms @ draws.T).T)

        count = tops.shape[-1]
        value = float(statistic(np.ones((1, count)))[0])
        found = bootstrap(statistic, count, seed) if np.isfinite(value) else None
        return value, float(found.low) if found else np.nan, float(found.high) if found else np.nan


def _ratio(top: Array, bottom: Array) -> Array:
    with np.errstate(invalid="ignore", divide="ignore"):
        found = top / bottom
    found[~np.isfinite(found)] = np.nan
    return found


class Effects:
    """Change of a later write over the write: the ratio of means, and the largest ratio of a token.

    The largest grows with the number of tokens, so it compares only equal samples.
    """

    def __init__(self, depth: int, num_sequences: int):
        self._means = PairTable(depth, num_sequences)
        self._largest = Largest(depth, depth)

    def add(self, pair: tuple[int, int], rows: slice, change: Tensor, size: Tensor, mask: Tensor) -> None:
        """Add a micro-batch: norms of the change and of the intact write `[B, T]`, where mask `[B, T]`."""
        self._means.add(pair, rows, change, size, mask)
        if bool(mask.any()):
            ratio = (change / size.clamp(min=SMALLEST)).where(mask, 0.0)
            self._largest.add(pair, float(ratio.max()))

    def result(self, name: str, definition: str, seed: int, later_name: str = "") -> Result:
        """Matrices `name.<aggregation>` (source s, later l) and their means over later visits."""
        means = f"{definition}, over the write (ratio of means)"
        largest = f"{definition}, over the write (largest ratio of a token)"
        later = ", mean over the later visits where it is defined"
        found = {
            "ratio_of_means": (self._means.matrix(), means, self._means.later(seed, "ratio", means + later)),
            "max_all_tokens": (
                self._largest.values,
                largest,
                Series(numbers(mean_defined(self._largest.values)), "ratio", largest + later),
            ),
        }
        result = Result()
        for aggregation, (values, words, series) in found.items():
            full = f"{name}.{aggregation}"
            result.matrices[full] = Matrix(values, "source s", "later l", "ratio", words)
            result.per_visit[f"{later_name or name}.{aggregation}"] = series
        return result
