"""Losses of altered streams, minus the intact loss: what most probes ask of an edit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from depthkit.utilization.edits import Edit
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.replay import Step
from depthkit.utilization.result import Result, Scalar, Series
from depthkit.utilization.statistics import Sample
from depthkit.utilization.table import TokenTable, series

UNIT = "nats / token"


class Deltas:
    """A table of loss differences, one row an edit; rows without an edit stay undefined.

    Args:
        edits: the edit of each row; several rows may show the same one.
        num_rows: rows of the table, for a series the number of visits.
        num_sequences: sequences of the evaluation.
    """

    def __init__(self, edits: Mapping[int, Edit], num_rows: int, num_sequences: int):
        self.edits = list(edits.values())
        self._rows: dict[Edit, list[int]] = {}
        for row, edit in edits.items():
            self._rows.setdefault(edit, []).append(row)
        self._table = TokenTable(num_rows, num_sequences)

    def add(self, step: Step) -> None:
        """Add the end of an altered stream, if it is one of these."""
        if step.scores is None:
            return
        scored = step.trace.batch.scored.cpu()
        change = step.scores.nats.double() - step.trace.scores.nats
        for row in self._rows.get(step.edit, ()):
            self._table.add(row, step.trace.rows, change, scored)

    @property
    def sample(self) -> Sample:
        """Sums and counts by row and sequence."""
        return self._table.sample

    def series(self, seed: int, definition: str) -> Series:
        """Mean difference by row, with intervals."""
        return series(self.sample, seed, UNIT, definition)

    def cost(self, depth: int) -> float:
        """Layer evaluations of these edits, each once."""
        return sum(edit.visits(depth) for edit in self._rows)


class DeltaProbe(Probe):
    """A probe whose answers are loss differences, a series for each of its groups of edits by visit."""

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self.deltas: dict[str, Deltas] = {}

    def group(self, name: str, edits: Mapping[int, Edit]) -> None:
        """Ask for a series with the edit of each of these visits."""
        self.deltas[name] = Deltas(edits, self.depth, len(self.context.sequences))

    def edits(self) -> list[Edit]:
        """Those of every group."""
        return [edit for deltas in self.deltas.values() for edit in deltas.edits]

    def update(self, step: Step) -> None:
        """Add the end of one altered stream."""
        for deltas in self.deltas.values():
            deltas.add(step)

    def answers(self, metric: str, definitions: Mapping[str, str]) -> Result:
        """The series `metric + group`, each with its sample."""
        result = Result()
        for group, deltas in self.deltas.items():
            result.samples[metric + group] = deltas.sample
            result.per_visit[metric + group] = deltas.series(self.context.seed, definitions[group])
        return result


def entry(found: Series, row: int, definition: str | None = None) -> Scalar:
    """One row of a series as a number for the whole model."""
    low, high = (None if ends is None else ends[row] for ends in (found.low, found.high))
    return Scalar(found.values[row], definition or found.definition, low, high)


def listed(visits: tuple[int, ...]) -> str:
    """Visits as a list to read, counted from 0."""
    return ", ".join(str(visit) for visit in visits)
