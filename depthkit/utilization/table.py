"""Where probes add up what they see, by visit and sequence, and how that becomes a series.

Shapes: B sequences of a micro-batch, T positions, K single tokens.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from depthkit.utilization.accumulators import Total
from depthkit.utilization.result import Series
from depthkit.utilization.statistics import Array, Interval, Number, Sample, numbers


class TokenTable:
    """Per-sequence sums of a per-token quantity, with token 0 and without it.

    The first token often carries a norm a hundred times the others'; both versions are reported under
    their own names, so nobody has to guess.
    """

    def __init__(self, num_rows: int, num_sequences: int):
        self._sums = Total(2, num_rows, num_sequences)
        self._counts = Total(2, num_rows, num_sequences)

    def add(self, row: int, rows: slice, values: Tensor, valid: Tensor) -> None:
        """Add a micro-batch: values [B, T], counted where valid [B, T]."""
        kept = values.double().where(valid, 0.0)
        for which, start in enumerate((0, 1)):
            self._sums.add((which, row, rows), kept[:, start:].sum(1).cpu().numpy())
            self._counts.add((which, row, rows), valid[:, start:].sum(1).cpu().numpy())

    def add_tokens(self, row: int, sequences: Array, values: Tensor) -> None:
        """Add single tokens [K] that belong to the given sequences [K]; all count as ordinary tokens."""
        length = self._sums.values.shape[-1]
        self._sums.add((0, row), np.bincount(sequences, values.double().cpu().numpy(), length))
        self._counts.add((0, row), np.bincount(sequences, minlength=length))

    @property
    def sample(self) -> Sample:
        """Sums and counts over all tokens."""
        return Sample(self._sums.values[0], self._counts.values[0])

    @property
    def sample_no_token0(self) -> Sample:
        """Sums and counts without the first token of each sequence."""
        return Sample(self._sums.values[1], self._counts.values[1])


def series(sample: Sample, seed: int, unit: str, definition: str) -> Series:
    """Means of a sample by row, with bootstrap intervals."""
    interval = sample.interval(seed)
    return Series(numbers(sample.means()), unit, definition, *_bounds(interval))


def _bounds(interval: Interval | None) -> tuple[list[Number] | None, list[Number] | None]:
    return (numbers(interval.low), numbers(interval.high)) if interval else (None, None)


def both_means(
    name: str, table: TokenTable, seed: int, unit: str, definition: str, rows: slice = slice(None)
) -> dict[str, Series]:
    """`name.mean` over all tokens and `name.mean_no_token0` over all but the first."""
    parts = {"mean": table.sample, "mean_no_token0": table.sample_no_token0}
    return {
        f"{name}.{aggregation}": series(Sample(s.sums[rows], s.counts[rows]), seed, unit, definition)
        for aggregation, s in parts.items()
    }
