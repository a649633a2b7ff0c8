"""What a ladder's pictures show, said once for the page and for the PNG plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from depthkit.ladder.axes import DEPTH, short_name, steps
from depthkit.ladder.compare import Interval
from depthkit.ladder.summary import Place, Row, Summary

CURVES = {
    "variance.mean": ("variance", "Variance of the residual stream", "variance over features", True),
    "ablation_delta_nats.skip": ("ablation", "Cost of skipping one layer", "loss increase (nats)", False),
}
"""Per-visit metrics that get a picture: file, title, label of the y axis, logarithmic."""


@dataclass(frozen=True)
class Series:
    """One line with its interval."""

    name: str
    x: list[float]
    points: list[Interval]


@dataclass(frozen=True)
class Panel:
    """One picture of several facets that share their axes: facet label -> lines."""

    file: str
    title: str
    x: str
    y: str
    log: bool
    facets: dict[str, list[Series]]


def panels(summary: Summary) -> list[Panel]:
    """Loss against depth, then per-visit curves of the deepest models."""
    x = _x_axis(summary)
    found = [] if x is None else [_against(summary, x)]
    deepest = {place: rows for place, rows in summary.cells().items() if _is_deepest(summary, place, x)}
    for metric, (file, title, label, log) in CURVES.items():
        if all(row.report and metric in row.report.metrics for rows in deepest.values() for row in rows):
            found.append(_by_visit(summary, deepest, metric, Panel(file, title, "layer", label, log, {})))
    return found


def _x_axis(summary: Summary) -> str | None:
    """`depth`, or else the first axis of numbers after the first axis, which gives the lines."""
    numeric = [axis for axis in summary.axes[1:] if all(_is_number(v) for v in _labels(summary, axis))]
    return DEPTH if DEPTH in numeric else next(iter(numeric), None)


def _labels(summary: Summary, axis: str) -> list[Any]:
    return [step.label for step in steps(axis, summary.ladder.axes[axis])]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_deepest(summary: Summary, place: Place, x: str | None) -> bool:
    return x != DEPTH or place[summary.axes.index(DEPTH)] == max(_labels(summary, DEPTH))


def _against(summary: Summary, x: str) -> Panel:
    column = summary.axes.index(x)

    def point(place: Place, rows: list[Row]) -> tuple[list[float], list[Interval]]:
        return [float(place[column])], [summary.loss(rows)]

    facets = _facets(summary, summary.cells(), {x}, point)
    title = f"Held-out loss against {short_name(x)}"
    return Panel("loss", title, short_name(x), "nats per token", False, facets)


def _by_visit(summary: Summary, cells: dict[Place, list[Row]], metric: str, panel: Panel) -> Panel:
    def curve(place: Place, rows: list[Row]) -> tuple[list[float], list[Interval]]:
        known = [(float(v), p) for v, p in enumerate(summary.curve(rows, metric)) if p is not None]
        return [v for v, _ in known], [p for _, p in known]

    facets = _facets(summary, cells, set(), curve)
    return Panel(panel.file, panel.title, panel.x, panel.y, panel.log, facets)


def _facets(
    summary: Summary,
    cells: dict[Place, list[Row]],
    joined: set[str],
    points: Callable[[Place, list[Row]], tuple[list[float], list[Interval]]],
) -> dict[str, list[Series]]:
    """Lines by the first axis; a facet for every place on the axes that are neither lines nor `joined`."""
    found: dict[str, dict[str, Series]] = {}
    for place, rows in cells.items():
        rest = [(a, p) for a, p in zip(summary.axes, place, strict=True) if a not in joined][1:]
        facet = ", ".join(f"{short_name(axis)} {label}" for axis, label in rest)
        line = found.setdefault(facet, {}).setdefault(str(place[0]), Series(str(place[0]), [], []))
        x, y = points(place, rows)
        line.x.extend(x)
        line.points.extend(y)
    return {facet: list(lines.values()) for facet, lines in found.items()}


def ends(points: Sequence[Interval]) -> tuple[list[float], list[float]]:
    """Lower and upper ends; the mean itself where there is no interval."""
    low = [p.mean if p.low is None else p.low for p in points]
    high = [p.mean if p.high is None else p.high for p in points]
    return low, high
