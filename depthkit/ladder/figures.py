"""What a ladder's pictures show, said once for the page and for the PNG plots."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from depthkit.ladder.axes import DEPTH, short_name, steps
from depthkit.ladder.compare import Interval
from depthkit.ladder.summary import Place, Row, Summary

CURVES = {
    "variance.mean": ("variance", "Variance of the residual stream", "variance over features", 0.0),
    "ablation_delta_nats.skip": (
        "ablation",
        "Cost of skipping one layer",
        "loss increase (nats; 0.0001 or less is drawn as 0.0001)",
        1e-4,
    ),
}
"""Per-visit metrics that get a picture: file, title, label of the y axis, floor of its logarithmic scale.

Skipping costs range over four orders of magnitude and can be negative, so they need a floor.
"""


@dataclass(frozen=True)
class Series:
    """One line with its interval."""

    name: str
    x: list[float]
    points: list[Interval]


@dataclass(frozen=True)
class Panel:
    """One picture of several facets that share their axes: facet label -> lines.

    `floor` is None on a linear scale; on a logarithmic one, values below it are drawn at it.
    """

    file: str
    title: str
    x: str
    y: str
    floor: float | None
    facets: dict[str, list[Series]]


def panels(summary: Summary) -> list[Panel]:
    """Loss against depth, then per-visit curves of the deepest models."""
    x = _x_axis(summary)
    found = [] if x is None else [_against(summary, x)]
    deepest = {place: rows for place, rows in summary.cells().items() if _is_deepest(summary, place, x)}
    for metric, (file, title, label, floor) in CURVES.items():
        if all(row.report and metric in row.report.metrics for rows in deepest.values() for row in rows):
            found.append(_by_visit(summary, deepest, metric, Panel(file, title, "layer", label, floor, {})))
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
    return Panel("loss", title, short_name(x), "nats per token", None, facets)


def _by_visit(summary: Summary, cells: dict[Place, list[Row]], metric: str, panel: Panel) -> Panel:
    def curve(place: Place, rows: list[Row]) -> tuple[list[float], list[Interval]]:
        known = [(float(v), p) for v, p in enumerate(summary.curve(rows, metric)) if p is not None]
        return [v for v, _ in known], [p for _, p in known]

    facets = _facets(summary, cells, set(), curve)
    return Panel(panel.file, panel.title, panel.x, panel.y, panel.floor, facets)


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


def bands(points: Sequence[Interval], floor: float | None) -> tuple[list[float], list[float], list[float]]:
    """Means, lower and upper ends as they are drawn; the mean itself where there is no interval.

    On a logarithmic scale nothing goes below the floor, nor an interval below a tenth of its mean, which
    would run off the picture.
    """
    means, low, high = [], [], []
    for point in points:
        mean = point.mean if floor is None else max(point.mean, floor)
        least = -math.inf if floor is None else max(floor, mean / 10)
        means.append(mean)
        low.append(max(mean if point.low is None else point.low, least))
        high.append(max(mean if point.high is None else point.high, least))
    return means, low, high
