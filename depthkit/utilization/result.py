"""What a probe hands back: numbers by visit, for the whole model, and as matrices."""

from __future__ import annotations

from dataclasses import dataclass, field

from depthkit.utilization.statistics import Array, Number, Sample


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
