"""Who is best, and who cannot be told apart from whom."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any

from depthkit.ladder.axes import short_name
from depthkit.ladder.compare import ALPHA, Interval, corrected, differences, p_value
from depthkit.ladder.results import Place, Results, Row


@dataclass(frozen=True)
class Ranked:
    """One contender: its rank is 1 plus the number of those that are significantly better."""

    label: Any
    rank: int
    loss: Interval


@dataclass(frozen=True)
class Ranking:
    """The contenders at one place of the other axes, best mean first."""

    where: dict[str, Any]
    ranked: list[Ranked]

    def sentence(self) -> str:
        """`At depth 32: 1. scaled_init; 2. lns, pre_ln (tied).`"""
        place = ", ".join(f"{short_name(axis)} {label}" for axis, label in self.where.items())
        groups = itertools.groupby(sorted(self.ranked, key=lambda r: r.rank), key=lambda r: r.rank)
        words = []
        for rank, group in groups:
            names = [str(item.label) for item in group]
            words.append(f"{rank}. {', '.join(names)}{' (tied)' if len(names) > 1 else ''}")
        return f"{f'At {place}: ' if place else ''}{'; '.join(words)}."


def rankings(results: Results) -> list[Ranking]:
    """One ranking for every place on the axes other than that of the lines.

    Every pair of contenders at one place is tested, paired by replicate; the p-values of all pairs at all
    places are corrected together.
    """
    if results.lines is None:
        return []
    contests = _contests(results)
    pairs = [
        (place, a, b) for place, contest in contests.items() for a, b in itertools.combinations(contest, 2)
    ]
    found = [differences(results.losses(contests[p][a]), results.losses(contests[p][b])) for p, a, b in pairs]
    beaten: Counter[tuple[Place, Any]] = Counter()
    for (place, a, b), values, q in zip(pairs, found, corrected([p_value(v) for v in found]), strict=True):
        if q is not None and q <= ALPHA:
            beaten[place, a if sum(values) < 0 else b] += 1
    others = [axis for axis in results.axes if axis != results.lines]
    return [
        Ranking(dict(zip(others, place, strict=True)), _ranked(results, place, contest, beaten))
        for place, contest in contests.items()
        if len(contest) > 1 and all(len(rows) > 1 for rows in contest.values())
    ]


def _contests(results: Results) -> dict[Place, dict[Any, list[Row]]]:
    """By place on the other axes: the rows of every contender."""
    assert results.lines is not None
    column = results.axes.index(results.lines)
    found: dict[Place, dict[Any, list[Row]]] = {}
    for place, rows in results.cells.items():
        found.setdefault(place[:column] + place[column + 1 :], {})[place[column]] = rows
    return found


def _ranked(
    results: Results, place: Place, contest: dict[Any, list[Row]], beaten: Counter[tuple[Place, Any]]
) -> list[Ranked]:
    found = [Ranked(label, 1 + beaten[place, label], results.loss(rows)) for label, rows in contest.items()]
    return sorted(found, key=lambda item: item.loss.mean)
