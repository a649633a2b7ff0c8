"""What a ladder's pictures show, said once for the page and for the PNG plots."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib
from matplotlib.colors import to_hex

from depthkit.ladder.axes import DEPTH, short_name
from depthkit.ladder.compare import Interval
from depthkit.ladder.results import Place, Results

MOST_FACETS = 6
"""Facets of one picture; of more, the deepest models are shown, and no more than these of them."""

_PAIRS = [to_hex(colour) for colour in matplotlib.color_sequences["tab20"]]
COLOURS = (*_PAIRS[::2], *_PAIRS[1::2])
"""Twenty colours for lines: ten strong ones first, then their pale twins."""

Points = tuple[list[float], list[Interval]]


@dataclass
class Series:
    """One line with its interval; `index`, its place among all lines of the ladder, gives its colour."""

    name: str
    index: int = 0
    x: list[float] = field(default_factory=list)
    points: list[Interval] = field(default_factory=list)


@dataclass(frozen=True)
class Panel:
    """One picture of several facets that share their axes: facet label -> lines.

    `floor` is None on a linear scale; on a logarithmic one, values below it are drawn at it. `note` says in
    words what the reader could not guess.
    """

    file: str
    title: str
    x: str
    y: str
    floor: float | None = None
    x_log: bool = False
    note: str = ""
    facets: dict[str, list[Series]] = field(default_factory=dict)

    @property
    def few(self) -> bool:
        """Whether there are so few points on each line that each is marked and named on the axis."""
        return all(len(line.x) <= 8 for lines in self.facets.values() for line in lines)

    def shape(self) -> tuple[int, int]:
        """Rows and columns of facets: up to three beside one another, four in a square."""
        count = len(self.facets)
        columns = 2 if count == 4 else min(count, 3)
        return math.ceil(count / columns), columns

    def limits(self) -> list[float] | None:
        """Ends of a linear y axis; intervals far wider than the means lie apart are cut off."""
        points = [point for lines in self.facets.values() for line in lines for point in line.points]
        if self.floor is not None or not points:
            return None
        means, lows, highs = bands(points, None)
        apart = (max(means) - min(means)) or 0.1 * abs(means[0]) or 1.0
        low, high = max(min(lows), min(means) - apart), min(max(highs), max(means) + apart)
        return [low - 0.05 * apart, high + 0.05 * apart]

    def colours(self) -> dict[str, str]:
        """Colour by name of line, in the order of the ladder; a line has one colour in all pictures."""
        drawn = {line.name: line.index for lines in self.facets.values() for line in lines}
        return {name: COLOURS[drawn[name] % len(COLOURS)] for name in sorted(drawn, key=lambda n: drawn[n])}

    def ticks(self) -> list[float] | None:
        """The measured values themselves, where they are few."""
        measured = sorted({x for lines in self.facets.values() for line in lines for x in line.x})
        return measured if self.few and len(measured) <= 8 else None


def facets(
    results: Results,
    places: Iterable[tuple[Place, Points]],
    joined: Sequence[str] = (),
) -> dict[str, list[Series]]:
    """Lines by the axis of lines; a facet for every place on the axes that are neither that nor `joined`.

    A ladder without an axis of lines gives them to the first axis that is not joined.
    """
    lines = results.lines or next((axis for axis in results.axes if axis not in joined), None)
    left = [axis for axis in results.axes if axis != lines and axis not in joined]
    order = {} if lines is None else {_name(lines, v): i for i, v in enumerate(results.labels(lines))}
    found: dict[str, dict[str, Series]] = {}
    for place, (x, y) in places:
        facet = ", ".join(f"{short_name(axis)} {results.at(place, axis)}" for axis in left)
        name = "" if lines is None else _name(lines, results.at(place, lines))
        line = found.setdefault(facet, {}).setdefault(name, Series(name, order.get(name, 0)))
        line.x.extend(x)
        line.points.extend(y)
    return {facet: list(drawn.values()) for facet, drawn in list(found.items())[:MOST_FACETS]}


def _name(axis: str, label: Any) -> str:
    """What a line is called: a number says nothing without its axis."""
    return f"{short_name(axis)} {label}" if is_number(label) else str(label)


def shown(results: Results, cells: Mapping[Place, Any]) -> dict[Place, Any]:
    """The places that get a facet of their own: all when that makes few facets, else the deepest models."""
    left = [axis for axis in results.axes if axis != results.lines]
    if len({tuple(results.at(place, a) for a in left) for place in cells}) <= MOST_FACETS:
        return dict(cells)
    if DEPTH not in results.axes:
        return dict(cells)
    deepest = max(results.labels(DEPTH))
    return {place: rows for place, rows in cells.items() if results.at(place, DEPTH) == deepest}


def numeric_axis(results: Results) -> str | None:
    """`depth`, or else the first axis of numbers that does not give the lines."""
    numeric = [a for a in results.axes if a != results.lines and all(map(is_number, results.labels(a)))]
    return DEPTH if DEPTH in numeric else next(iter(numeric), None)


def is_number(value: Any) -> bool:
    """Whether a label can stand on an axis."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def spans_decades(values: Sequence[float]) -> bool:
    """Whether an axis of these values is easier to read on a logarithmic scale."""
    return min(values) > 0 and max(values) >= 8 * min(values)


def against(
    results: Results,
    axis: str,
    panel: Panel,
    value: Callable[[Place, Any], Interval | None],
    cells: Mapping[Place, Any],
) -> Panel:
    """A number of each place drawn against its value on one axis; places without the number are left out."""
    points = [
        (place, ([float(results.at(place, axis))], [found]))
        for place, rows in cells.items()
        if (found := value(place, rows)) is not None
    ]
    panel.facets.update(facets(results, points, results.along(axis)))
    return panel


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
