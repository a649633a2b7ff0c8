"""What a probe is, and what it hands back.

Shapes: B sequences of a micro-batch, T positions, L visits, N sequences in all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from depthkit.registry import Spec
from depthkit.utilization.replay import Step, Trace
from depthkit.utilization.sequences import Sequences
from depthkit.utilization.statistics import Array, Interval, Number, Sample, numbers
from depthkit.utilization.subject import Subject


@dataclass(frozen=True)
class Series:
    """One number a visit; `low` and `high` are the 95 % interval over sequences, None when there is none."""

    values: list[Number]
    unit: str
    definition: str
    low: list[Number] | None = None
    high: list[Number] | None = None


@dataclass(frozen=True)
class Scalar:
    """One number (or word) for the whole model."""

    value: Number | str
    definition: str
    low: Number = None
    high: Number = None


@dataclass(frozen=True)
class Matrix:
    """A table of numbers; NaN marks entries that are undefined."""

    values: Array
    rows: str
    columns: str
    unit: str
    definition: str


@dataclass
class Result:
    """Everything a probe found. Names read `metric.aggregation`.

    `samples` are the per-sequence sums behind a series, kept so that intervals and comparisons can
    resample sequences later. `skipped` maps what was left out to the reason.
    """

    per_visit: dict[str, Series] = field(default_factory=dict)
    matrices: dict[str, Matrix] = field(default_factory=dict)
    scalars: dict[str, Scalar] = field(default_factory=dict)
    samples: dict[str, Sample] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """What every probe knows from the start."""

    subject: Subject
    sequences: Sequences
    depth: int
    seed: int


class Probe(ABC):
    """A question asked of each visit, answered from a sweep that all probes share.

    `requires` names the sweep: "stream" gives `update` every `Trace` (the intact states of a micro-batch),
    "skip" every `Step` of the single-visit skip sweep.
    """

    requires: ClassVar[Literal["stream", "skip"]]

    class Config(Spec):
        """No settings."""

    def __init__(self, config: Any, context: Context):
        self.config = config
        self.context = context
        self.depth = context.depth

    @abstractmethod
    def update(self, event: Any) -> None:
        """Take in one event of the sweep; keep sums, never token-sized tensors."""

    @abstractmethod
    def compute(self) -> Result:
        """The answer. Undefined numbers are None."""

    def table(self, rows: int) -> TokenTable:
        """An empty table for this evaluation's sequences."""
        return TokenTable(rows, len(self.context.sequences))


class TokenTable:
    """Per-sequence sums of a per-token quantity, with token 0 and without it.

    The first token often carries a norm a hundred times the others'; both versions are reported under
    their own names, so nobody has to guess.
    """

    def __init__(self, num_rows: int, num_sequences: int):
        self._sums = np.zeros((2, num_rows, num_sequences))
        self._counts = np.zeros((2, num_rows, num_sequences))

    def add(self, row: int, rows: slice, values: Tensor, valid: Tensor) -> None:
        """Add a micro-batch: values [B, T], counted where valid [B, T]."""
        kept = values.double().where(valid, 0.0)
        for which, start in enumerate((0, 1)):
            self._sums[which, row, rows] += kept[:, start:].sum(1).cpu().numpy()
            self._counts[which, row, rows] += valid[:, start:].sum(1).cpu().numpy()

    def add_tokens(self, row: int, sequences: Array, values: Tensor) -> None:
        """Add single tokens [K] that belong to the given sequences [K]; all count as ordinary tokens."""
        length = self._sums.shape[-1]
        self._sums[0, row] += np.bincount(sequences, values.double().cpu().numpy(), length)
        self._counts[0, row] += np.bincount(sequences, minlength=length)

    @property
    def sample(self) -> Sample:
        """Sums and counts over all tokens."""
        return Sample(self._sums[0], self._counts[0])

    @property
    def sample_no_token0(self) -> Sample:
        """Sums and counts without the first token of each sequence."""
        return Sample(self._sums[1], self._counts[1])


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


__all__ = [
    "Context",
    "Matrix",
    "Probe",
    "Result",
    "Scalar",
    "Series",
    "Step",
    "TokenTable",
    "Trace",
    "both_means",
    "series",
]
