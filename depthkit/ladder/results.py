"""What the rungs of a ladder left in their folders, and how they lie on its axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from depthkit.ladder.axes import DEPTH, RATE, labels
from depthkit.ladder.compare import Interval, interval
from depthkit.ladder.cost import Vocabularies, counts
from depthkit.ladder.spec import LadderConfig, Rung
from depthkit.ladder.state import FINISHED, RungFiles, State
from depthkit.model import Accounting
from depthkit.training import metrics
from depthkit.utilization import Report

Place = tuple[Any, ...]


@dataclass(frozen=True)
class Row:
    """One rung: where it stands, how it ended, and what it measured when it is finished."""

    rung: Rung
    state: State
    report: Report | None = None
    history: tuple[metrics.Row, ...] = ()
    counts: Accounting | None = None

    @property
    def loss(self) -> float | None:
        """Held-out nats per token on the evaluated windows, the same for all rungs."""
        return None if self.report is None else self.report.content["baseline"]["loss_nats"]

    def scalar(self, name: str) -> float | None:
        """A number of the report; None where there is none."""
        return None if self.report is None else self.report.scalar(name)

    def rows(self, event: str) -> list[metrics.Row]:
        """What the run measured while it trained."""
        return [row for row in self.history if row["event"] == event]

    def flops(self, step: int) -> float:
        """Training FLOPs spent after `step` steps."""
        assert self.counts is not None
        run = self.rung.config
        per_step = run.train.tokens_per_step(run.data.sequence_length)
        return step * per_step * self.counts.train_flops_per_token


@dataclass(frozen=True)
class Results:
    """The rows of a ladder. A place says where a row stands on `axes`; replicates stand there together."""

    ladder: LadderConfig
    rows: list[Row]

    @cached_property
    def swept(self) -> bool:
        """Whether each place has several learning rates, of which the best counts."""
        return RATE in self.ladder.fairness.learning_rate.axes()

    @cached_property
    def axes(self) -> list[str]:
        """All axes but the replicates and a swept learning rate."""
        left_out = {self.ladder.replicate, RATE if self.swept else ""}
        return [axis for axis in self.ladder.all_axes if axis not in left_out]

    def labels(self, axis: str) -> list[Any]:
        """What the values of an axis are called."""
        return labels(self.ladder.all_axes, axis)

    def place(self, row: Row) -> Place:
        """Where a row stands."""
        return tuple(_hashable(row.rung.place[axis]) for axis in self.axes)

    def at(self, place: Place, axis: str) -> Any:
        """The part of a place on one axis."""
        return place[self.axes.index(axis)]

    @cached_property
    def by_rate(self) -> dict[Place, dict[float, list[Row]]]:
        """Finished rows by place and learning rate, in the order of the axes."""
        found: dict[Place, dict[float, list[Row]]] = {}
        for row in self.rows:
            if row.report is not None:
                rate = row.rung.config.train.lr if self.swept else 0.0
                found.setdefault(self.place(row), {}).setdefault(rate, []).append(row)
        return found

    @cached_property
    def cells(self) -> dict[Place, list[Row]]:
        """Finished rows by place; of several learning rates the best, by mean loss, of the most complete."""
        return {place: rates[self.best_rate(rates)] for place, rates in self.by_rate.items()}

    def best_rate(self, rates: Mapping[float, list[Row]]) -> float:
        """The rate at which most replicates finished, and among those the one with the lowest mean loss."""
        return min(rates, key=lambda rate: (-len(rates[rate]), self.loss(rates[rate]).mean))

    def losses(self, rows: Sequence[Row]) -> dict[Any, float]:
        """Loss by replicate."""
        return {row.rung.place[self.ladder.replicate]: row.loss for row in rows if row.loss is not None}

    def loss(self, rows: Sequence[Row]) -> Interval:
        """Mean loss over replicates."""
        return interval(list(self.losses(rows).values()))

    def curve(self, rows: Sequence[Row], metric: str) -> list[Interval | None]:
        """A per-visit metric averaged over replicates; None where it is undefined in one of them."""
        columns = zip(*(row.report.per_visit(metric) for row in rows if row.report), strict=True)
        return [None if None in column else interval([float(v) for v in column]) for column in columns]

    def pairs(self) -> Iterator[tuple[str, Place, Place]]:
        """(axis, place, place of its baseline) of every comparison of which both sides finished."""
        for comparison in self.ladder.compare:
            if comparison.axis not in self.axes:
                continue
            column, baseline = self.axes.index(comparison.axis), _hashable(comparison.baseline)
            for place in self.cells:
                other = (*place[:column], baseline, *place[column + 1 :])
                if place != other and other in self.cells:
                    yield comparison.axis, place, other

    def along(self, axis: str) -> list[str]:
        """The axis and those that advance with it."""
        return next((list(group) for group in self.ladder.zips if axis in group), [axis])

    def elsewhere(self, place: Place, axis: str) -> dict[str, Any]:
        """Where a place stands on the axes other than `axis`."""
        return {name: label for name, label in zip(self.axes, place, strict=True) if name != axis}

    @cached_property
    def lines(self) -> str | None:
        """The axis whose values are ranked and told apart by colour; None where there is no such axis.

        It is that of the first comparison, or the first axis, that is not the depth.
        """
        wanted = [comparison.axis for comparison in self.ladder.compare] + self.axes
        return next((axis for axis in wanted if axis != DEPTH and axis in self.axes), None)


def _hashable(label: Any) -> Any:
    """A label that can be part of a key: lists and mappings by their text."""
    return str(label) if isinstance(label, list | dict) else label


def read(ladder: LadderConfig, rungs: Sequence[Rung], folder: Path) -> Results:
    """Read the rungs' states, reports and metrics back."""
    vocabularies = Vocabularies()
    return Results(ladder, [_row(rung, RungFiles(folder, rung.name), vocabularies) for rung in rungs])


def _row(rung: Rung, files: RungFiles, vocabularies: Vocabularies) -> Row:
    state = files.state()
    if state.state != FINISHED:
        return Row(rung, state)
    history = tuple(metrics.read(files.metrics))
    report = Report.load(files.run)
    return Row(rung, state, report, history, counts(vocabularies.fill(rung.config)))
