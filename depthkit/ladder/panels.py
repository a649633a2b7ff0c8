"""The pictures of a ladder, one function each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from depthkit.ladder.axes import DEPTH, short_name
from depthkit.ladder.compare import Interval, interval
from depthkit.ladder.figures import Panel, Points, against, facets, numeric_axis, shown, spans_decades
from depthkit.ladder.results import Place, Results, Row
from depthkit.ladder.summary import Summary

BY_VISIT = {
    "variance.mean": ("variance", "Variance of the residual stream", "variance over features", 0.0),
    "ablation_delta_nats.skip": (
        "ablation",
        "Cost of skipping one visit",
        "loss increase (nats; 0.0001 or less is drawn as 0.0001)",
        1e-4,
    ),
    "later_effect.ratio_of_means": (
        "later_effect",
        "Change of later writes when a visit is skipped",
        "relative change, mean over later visits",
        1e-4,
    ),
}
"""Per-visit metrics that get a picture: file, title, label of the y axis, floor of its logarithmic scale.

Skipping costs range over four orders of magnitude and can be negative, so they need a floor.
"""

EFFECTIVE = {
    "n_eff_entropy.ablation": (
        "effective_depth",
        "Effective depth",
        "visits (exp of entropy of skip costs)",
    ),
    "ablate_frac@0.01": ("used", "Visits that are used", "share that costs more than 0.01 nats to skip"),
}

BINS = 60
"""Points of a training curve, each a mean over steps."""


def panels(summary: Summary) -> list[Panel]:
    """Every picture that has something to show."""
    results = summary.results
    found = [*_losses(results), *_rates(results), *_reach(summary), *_training(results)]
    found += [*_effective(results), *_by_relative_depth(results)]
    return [panel for panel in found if panel.facets]


def _against(file: str, title: str, y: str, results: Results, axis: str, floor: float | None = None) -> Panel:
    """An empty picture of something against one axis of numbers."""
    name = short_name(axis)
    x_log = spans_decades([float(label) for label in results.labels(axis)])
    return Panel(file, f"{title} against {name}", name, y, floor, x_log)


def _losses(results: Results) -> Iterator[Panel]:
    axis = numeric_axis(results)
    if axis is not None:
        panel = _against("loss", "Held-out loss", "nats per token", results, axis)
        yield against(results, axis, panel, lambda _, rows: results.loss(rows), results.cells)


def _rates(results: Results) -> Iterator[Panel]:
    """Sensitivity to the learning rate, and which was best."""
    if not results.swept:
        return
    panel = Panel(
        "sensitivity", "Held-out loss against learning rate", "learning rate", "nats per token", x_log=True
    )
    points = [
        (place, (sorted(rates), [results.loss(rates[rate]) for rate in sorted(rates)]))
        for place, rates in shown(results, results.by_rate).items()
    ]
    panel.facets.update(facets(results, points))
    yield panel
    if (axis := numeric_axis(results)) is not None:
        panel = _against("best_rate", "Best learning rate", "learning rate", results, axis, 0.0)
        yield against(results, axis, panel, lambda _, rows: _rate(rows), results.cells)


def _rate(rows: Sequence[Row]) -> Interval:
    return Interval(rows[0].rung.config.train.lr, None, None, 1)


def _reach(summary: Summary) -> Iterator[Panel]:
    results, axis = summary.results, numeric_axis(summary.results)
    ratios = {
        (*found.where.values(), found.value): found.ratio
        for found in summary.reaches
        if found.axis == results.lines and found.ratio is not None
    }
    if axis is None or not ratios:
        return
    title, y = "Compute to reach the baseline's loss", "times less compute (1: the baseline's)"
    panel = _against("compute", title, y, results, axis, 0.0)
    yield against(results, axis, panel, lambda place, _: ratios.get(_key(results, place)), results.cells)


def _key(results: Results, place: Place) -> Place:
    assert results.lines is not None
    return (*results.elsewhere(place, results.lines).values(), results.at(place, results.lines))


def _training(results: Results) -> Iterator[Panel]:
    note = f"means over up to {BINS} parts of a run"
    panel = Panel("training", "Training loss", "tokens", "nats per token", note=note)
    places = shown(results, results.cells)
    panel.facets.update(facets(results, [(place, _training_curve(rows)) for place, rows in places.items()]))
    yield panel


def _training_curve(rows: Sequence[Row]) -> Points:
    """Mean over replicates of the binned loss; bins without a finite loss in all of them are left out."""
    curves = [_binned(row) for row in rows]
    shared = sorted(set.intersection(*(set(curve) for curve in curves)))
    return shared, [interval([curve[x] for curve in curves]) for x in shared]


def _binned(row: Row) -> dict[float, float]:
    """Tokens at the end of each part -> mean loss within it."""
    train = [(r["step"], r["loss"]) for r in row.rows("train") if r["loss"] is not None]
    total = row.rung.config.total_steps
    run = row.rung.config
    found: dict[int, list[float]] = {}
    for step, loss in train:
        found.setdefault(math.ceil(step * BINS / total), []).append(loss)
    tokens = run.train.tokens_per_step(run.data.sequence_length) * total / BINS
    return {number * tokens: float(np.mean(losses)) for number, losses in found.items()}


def _effective(results: Results) -> Iterator[Panel]:
    axis = numeric_axis(results)
    if axis is None:
        return
    for name, (file, title, label) in EFFECTIVE.items():
        panel = _against(file, title, label, results, axis)
        yield against(results, axis, panel, partial(_scalar, name), results.cells)


def _scalar(name: str, _: Place, rows: Sequence[Row]) -> Interval | None:
    values = [row.scalar(name) for row in rows]
    return None if None in values else interval([float(v) for v in values if v is not None])


def _by_relative_depth(results: Results) -> Iterator[Panel]:
    cells = shown(results, results.cells)
    x = "relative depth, visit / (depth - 1)" if DEPTH in results.axes else "relative depth"
    for metric, (file, title, label, floor) in BY_VISIT.items():
        known = {place: rows for place, rows in cells.items() if all(_has(row, metric) for row in rows)}
        panel = Panel(file, title, x, label, floor)
        points = [(place, _visit_curve(results, rows, metric)) for place, rows in known.items()]
        panel.facets.update(facets(results, points))
        yield panel


def _has(row: Row, metric: str) -> bool:
    return row.report is not None and metric in row.report.metrics


def _visit_curve(results: Results, rows: Sequence[Row], metric: str) -> Points:
    report = rows[0].report
    assert report is not None
    curve = zip(report.relative_depth(), results.curve(rows, metric), strict=True)
    known = [(x, point) for x, point in curve if point is not None]
    return [x for x, _ in known], [point for _, point in known]
