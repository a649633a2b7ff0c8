"""From what was measured to the report's plain data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from depthkit.utilization.measuring import Baseline, Findings
from depthkit.utilization.report.report import SCHEMA_VERSION, Report
from depthkit.utilization.report.summary import summarise
from depthkit.utilization.result import Scalar, Series
from depthkit.utilization.statistics import mean_defined, number

BASELINE = "baseline_loss_nats"


@dataclass(frozen=True)
class Against:
    """A null model: its name, what it is, the seed it was made with, and what was found of it."""

    name: str
    words: str
    seed: int
    found: Findings


@dataclass(frozen=True)
class Evaluated:
    """All that a report is made of."""

    found: Findings
    info: dict[str, Any]
    env: dict[str, Any]
    data: dict[str, Any]
    against: list[Against] = field(default_factory=list)


def build(evaluated: Evaluated) -> Report:
    """Assemble a report; the summary is written from its numbers."""
    found, data = evaluated.found, evaluated.data
    result = found.result
    content = {
        "schema_version": SCHEMA_VERSION,
        "model": found.model | evaluated.info,
        "env": evaluated.env,
        "data": data,
        "baseline": _baseline(found.baseline, data),
        "per_visit": [_row(found, visit) for visit in range(len(found.places))],
        "metrics": {name: _meaning(found, name, series) for name, series in result.per_visit.items()},
        "scalars": {name: _scalar(found, name, scalar) for name, scalar in result.scalars.items()},
        "matrices": {name: _axes(found, name, matrix) for name, matrix in result.matrices.items()},
        "null": {null.name: _null(null, data) for null in evaluated.against},
        "canaries": {name: asdict(canary) for name, canary in found.checks.items()},
        "skipped": [{"metric": name, "reason": reason} for name, reason in result.skipped.items()],
        "timing": found.timing,
    }
    report = Report(content, _arrays(found))
    content["summary"] = summarise(report)
    return report


def _baseline(found: Baseline, data: dict[str, Any]) -> dict[str, Any]:
    """Token-weighted means; `se` is the bootstrap standard error over sequences."""
    loss, interval = float(found.loss.means()[0]), found.interval
    ends = (interval.low[0], interval.high[0]) if interval else (None, None)
    size = data.get("n_bytes_scored")
    return {
        "loss_nats": number(loss),
        "ppl": number(np.exp(min(loss, 700.0))),
        "bits_per_byte": number(found.loss.sums.sum() / size / math.log(2)) if size else None,
        "se": number(interval.error[0]) if interval else None,
        "ci95": [number(end) for end in ends],
        "tok_acc": number(found.accuracy.means()[0]),
    }


def _row(found: Findings, visit: int) -> dict[str, Any]:
    place, series = found.places[visit], found.result.per_visit
    bounds = {n: [s.low[visit], s.high[visit]] for n, s in series.items() if s.low and s.high}
    return {
        "visit": visit,
        "relative_depth": visit / (len(found.places) - 1) if len(found.places) > 1 else None,
        "key": f"{place.segment}.{place.loop}.{place.slot}",
        **asdict(place),
        **{name: s.values[visit] for name, s in series.items()},
        "ci95": bounds,
    }


def _meaning(found: Findings, name: str, series: Series) -> dict[str, Any]:
    return {"unit": series.unit, "definition": series.definition, "probe": found.owners[name]}


def _scalar(found: Findings, name: str, scalar: Scalar) -> dict[str, Any]:
    told: dict[str, Any] = {"value": scalar.value, "definition": scalar.definition}
    told["probe"] = found.owners[name]
    return told if scalar.low is None else told | {"ci95": [scalar.low, scalar.high]}


def _axes(found: Findings, name: str, matrix: Any) -> dict[str, Any]:
    words = {part: getattr(matrix, part) for part in ("rows", "columns", "unit", "definition")}
    return words | {"probe": found.owners[name], "undefined": "NaN in matrices.npz"}


def _null(null: Against, data: dict[str, Any]) -> dict[str, Any]:
    """The same numbers of a null model, without their meanings; of a matrix the mean of what is defined."""
    result = null.found.result
    return {
        "definition": null.words,
        "seed": null.seed,
        "baseline": _baseline(null.found.baseline, data),
        "per_visit": {
            name: {"values": series.values, "low": series.low, "high": series.high}
            for name, series in result.per_visit.items()
        },
        "scalars": {name: scalar.value for name, scalar in result.scalars.items()},
        "matrix_means": {
            name: number(mean_defined(matrix.values.ravel())) for name, matrix in result.matrices.items()
        },
        "timing": null.found.timing,
    }


def _arrays(found: Findings) -> dict[str, Any]:
    arrays = {name: matrix.values for name, matrix in found.result.matrices.items()}
    for name, sample in ({BASELINE: found.baseline.loss} | found.result.samples).items():
        arrays |= {f"{name}.sums": sample.sums, f"{name}.counts": sample.counts}
    return arrays
