"""From what the probes found to the report's plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from depthkit.utilization.canaries import Canary
from depthkit.utilization.report.report import SCHEMA_VERSION, Report
from depthkit.utilization.report.summary import summarise
from depthkit.utilization.result import Result, Scalar
from depthkit.utilization.statistics import Interval, Sample, number
from depthkit.utilization.subject import Place

BASELINE = "baseline_loss_nats"


@dataclass(frozen=True)
class Baseline:
    """Loss and accuracy of the intact model by sequence, and the loss's interval."""

    loss: Sample
    accuracy: Sample
    interval: Interval | None

    def numbers(self) -> dict[str, Any]:
        """Token-weighted means; `se` is the bootstrap standard error over sequences."""
        loss = float(self.loss.means()[0])
        ends = (self.interval.low[0], self.interval.high[0]) if self.interval else (None, None)
        return {
            "loss_nats": number(loss),
            "ppl": number(np.exp(min(loss, 700.0))),
            "se": number(self.interval.error[0]) if self.interval else None,
            "ci95": [number(end) for end in ends],
            "tok_acc": number(self.accuracy.means()[0]),
        }


@dataclass(frozen=True)
class Findings:
    """All that a report is made of."""

    model: dict[str, Any]
    env: dict[str, Any]
    data: dict[str, Any]
    places: list[Place]
    baseline: Baseline
    result: Result
    checks: dict[str, Canary]
    timing: dict[str, Any]


def build(found: Findings) -> Report:
    """Assemble a report; the summary is written from its numbers."""
    result = found.result
    content = {
        "schema_version": SCHEMA_VERSION,
        "model": found.model,
        "env": found.env,
        "data": found.data,
        "baseline": found.baseline.numbers(),
        "per_visit": [_row(found, visit) for visit in range(len(found.places))],
        "metrics": {n: {"unit": s.unit, "definition": s.definition} for n, s in result.per_visit.items()},
        "scalars": {name: _scalar(scalar) for name, scalar in result.scalars.items()},
        "matrices": {name: _meaning(matrix) for name, matrix in result.matrices.items()},
        "canaries": {name: asdict(canary) for name, canary in found.checks.items()},
        "skipped": [{"metric": name, "reason": reason} for name, reason in result.skipped.items()],
        "timing": found.timing,
    }
    report = Report(content, _arrays(found))
    content["summary"] = summarise(report)
    return report


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


def _scalar(scalar: Scalar) -> dict[str, Any]:
    found: dict[str, Any] = {"value": scalar.value, "definition": scalar.definition}
    return found if scalar.low is None else found | {"ci95": [scalar.low, scalar.high]}


def _meaning(matrix: Any) -> dict[str, str]:
    words = {name: getattr(matrix, name) for name in ("rows", "columns", "unit", "definition")}
    return words | {"undefined": "NaN in matrices.npz"}


def _arrays(found: Findings) -> dict[str, Any]:
    arrays = {name: matrix.values for name, matrix in found.result.matrices.items()}
    for name, sample in ({BASELINE: found.baseline.loss} | found.result.samples).items():
        arrays |= {f"{name}.sums": sample.sums, f"{name}.counts": sample.counts}
    return arrays
