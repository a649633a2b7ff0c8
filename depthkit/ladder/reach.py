"""Compute to reach the baseline's loss: how many times less training gets as far as the baseline's whole run.

For each replicate, the baseline's training FLOPs are divided by the FLOPs after which the other run first has
the baseline's final held-out loss. Between two evaluations the loss is taken to be linear in the logarithm of
compute. Both runs decay their learning rate over their own whole length, so a loss in the middle of a run is
higher than a run planned to end there would have: the ratio errs on the low side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from depthkit.ladder.axes import short_name
from depthkit.ladder.compare import Interval, interval
from depthkit.ladder.results import Results, Row

FEWEST = 3
"""Evaluations on held-out text that a run must have for a curve."""


@dataclass(frozen=True)
class Reach:
    """`ratio` is the geometric mean over the replicates that reach the baseline's loss, None if none does."""

    axis: str
    value: Any
    baseline: Any
    where: dict[str, Any]
    ratio: Interval | None
    reached: int
    replicates: int

    def sentence(self) -> str:
        """`At depth 32: lns reaches pre_ln's final loss with 1.32 times less compute (1.20 to 1.45).`"""
        place = ", ".join(f"{short_name(axis)} {label}" for axis, label in self.where.items())
        head = f"At {place}: " if place else ""
        value, baseline = (
            label if isinstance(label, str) else f"{short_name(self.axis)} {label}"
            for label in (self.value, self.baseline)
        )
        if self.ratio is None:
            return f"{head}{value} never reaches the final loss of {baseline}."
        some = (
            ""
            if self.reached == self.replicates
            else f" in {self.reached} of {self.replicates} replicates, the others never do"
        )
        return f"{head}{value} takes {shown(self.ratio)} to reach the final loss of {baseline}{some}."


def shown(ratio: Interval) -> str:
    """`1.32 times less compute (95 % interval 1.20 to 1.45)`; what is below 1 is the other way round."""
    if ratio.mean < 1:
        low, high = (None if end is None else 1 / end for end in (ratio.high, ratio.low))
        return f"{1 / ratio.mean:.2f} times more compute{_span(low, high)}"
    return f"{ratio.mean:.2f} times less compute{_span(ratio.low, ratio.high)}"


def _span(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" (95 % interval {low:.2f} to {high:.2f})"


def reaches(results: Results) -> list[Reach]:
    """Every configured comparison at every place where both sides have curves."""
    return [
        _reach(results, axis, place, other)
        for axis, place, other in results.pairs()
        if all(len(row.rows("validation")) >= FEWEST for row in results.cells[place])
    ]


def _reach(results: Results, axis: str, place: tuple[Any, ...], other: tuple[Any, ...]) -> Reach:
    replicate = results.ladder.replicate
    baselines = {row.rung.place[replicate]: row for row in results.cells[other]}
    matched = [(baselines.get(row.rung.place[replicate]), row) for row in results.cells[place]]
    ratios = [ratio(baseline, row) for baseline, row in matched if baseline is not None]
    logs = [math.log(value) for value in ratios if value is not None]
    values = results.at(place, axis), results.at(other, axis)
    return Reach(axis, *values, results.elsewhere(place, axis), _exponential(logs), len(logs), len(ratios))


def _exponential(logs: Sequence[float]) -> Interval | None:
    if not logs:
        return None
    found = interval(logs)
    low, high = (None if end is None else math.exp(end) for end in (found.low, found.high))
    return Interval(math.exp(found.mean), low, high, found.count)


def ratio(baseline: Row, row: Row) -> float | None:
    """The baseline's training FLOPs over those after which `row` has its final loss; None if it never has."""
    goal = baseline.rows("validation")[-1]
    curve = [
        (row.flops(v["step"]), v["val_loss"]) for v in row.rows("validation") if v["val_loss"] is not None
    ]
    spent = reached_at(curve, goal["val_loss"])
    return None if spent is None else baseline.flops(goal["step"]) / spent


def reached_at(curve: Sequence[tuple[float, float]], goal: float) -> float | None:
    """FLOPs at which a curve of (FLOPs, loss) first has `goal`; of the first point if that has it already."""
    for (before, higher), (after, lower) in zip([*curve[:1], *curve], curve, strict=False):
        if lower <= goal:
            if before == after or higher <= lower:
                return after
            share = (higher - goal) / (higher - lower)
            return math.exp(math.log(before) + share * (math.log(after) - math.log(before)))
    return None
