"""The ends of loops among the visits, and the loss of a model that is run for other loop counts."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from depthkit.model import Plan, Transformer
from depthkit.model.rows import warn_of_untrained
from depthkit.utilization.probe import Context
from depthkit.utilization.replay import Trace
from depthkit.utilization.result import Matrix, Result, Scalar, Series
from depthkit.utilization.statistics import Array, Number, Sample
from depthkit.utilization.subject import Place
from depthkit.utilization.table import TokenTable, series

NEEDED_NATS = 0.01
"""Loss that fewer loops may cost and still count as enough."""


def boundaries(places: list[Place]) -> tuple[dict[str, list[int]], dict[str, str]]:
    """The last visit of every loop of every looped segment, and why other looped segments have none."""
    segments: dict[str, list[int]] = {}
    for visit, place in enumerate(places):
        segments.setdefault(place.segment, []).append(visit)
    ends, reasons = {}, {}
    for name, visits in segments.items():
        keys = [(places[visit].loop, places[visit].slot) for visit in visits]
        loops = 1 + max(loop for loop, _ in keys)
        slots = 1 + max(slot for _, slot in keys)
        if loops > 1 and keys == [(loop, slot) for loop in range(loops) for slot in range(slots)]:
            ends[name] = visits[slots - 1 :: slots]
        elif loops > 1:
            reasons[name] = f"layers of {name} are visited again, but not all of them in turn, loop by loop"
    return ends, reasons


class LoopCounts:
    """Loss of every looped segment at a list of loop counts.

    Args:
        counts: the list; None is 1 to R and 2 R of each segment.
        ends: see `boundaries`.
    """

    alike = frozenset({"_reasons", "_plans", "_notes"})

    def __init__(self, context: Context, counts: list[int] | None, ends: dict[str, list[int]]):
        self._context, self._ends = context, ends
        self._model = context.subject.model
        self._counts = {
            name: sorted(set(counts or [*range(1, len(visits) + 1), 2 * len(visits)]))
            for name, visits in ends.items()
        }
        self._tables = {
            name: TokenTable(len(counts), len(context.sequences)) for name, counts in self._counts.items()
        }
        self._reasons: dict[str, str] = {}
        self._plans: dict[tuple[str, int], Plan | None] = {}
        self._notes: dict[tuple[str, int], str] = {}

    def see(self, trace: Trace) -> None:
        """Run one micro-batch at every count."""
        for name, counts in self._counts.items():
            for row, count in enumerate(counts):
                nats = self._nats(trace, name, count)
                if nats is not None:
                    self._tables[name].add(row, trace.rows, nats, trace.batch.scored.cpu())

    def _nats(self, trace: Trace, name: str, count: int) -> Any:
        """Nats `[B, T]` with so many loops of one segment; None, with a reason, where it cannot be run."""
        if count == len(self._ends[name]):
            return trace.scores.nats
        model, batch = self._model, trace.batch
        if not isinstance(model, Transformer):
            self._reasons[name] = "only depthkit's own models say how to run them for other loop counts"
            return None
        if (name, count) not in self._plans:
            self._plans[name, count] = self._plan(model, name, count)
        plan = self._plans[name, count]
        if plan is None:
            return None
        self._context.count(len(batch), plan.depth)
        return model.token_losses(batch.ids, batch.targets, batch.documents, loops={name: count}).cpu()

    def _plan(self, model: Transformer, name: str, count: int) -> Plan | None:
        """The plan at a count; what it says about loops never trained belongs to the number, not to a log."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                plan = model.plan_at({name: count})
            except ValueError as error:
                self._reasons[f"{name}@{count}"] = str(error)
                return None
            warn_of_untrained(model.modules(), plan)  # the model itself says it the first time only
        self._notes[name, count] = "".join(f"; {note}" for note in sorted({str(w.message) for w in said}))
        return plan

    def compute(self) -> Result:
        """The loss at every count, at the last visit of every loop, and how many loops are needed."""
        result = Result(skipped={f"loss_by_loops[{name}]": reason for name, reason in self._reasons.items()})
        depth = len(self._context.places)
        sums, filled = np.zeros((2, depth, len(self._context.sequences)))
        for name, counts in self._counts.items():
            sample = self._tables[name].sample
            self._segment(result, name, counts, sample)
            for row, count in enumerate(counts):
                if count <= len(self._ends[name]):
                    visit = self._ends[name][count - 1]
                    sums[visit], filled[visit] = sample.sums[row], sample.counts[row]
        words = "loss when the segment is run for so many loops only, and the rest of the model after them"
        result.samples["loop_exit_loss_nats.mean"] = Sample(sums, filled)
        result.per_visit["loop_exit_loss_nats.mean"] = self._series(Sample(sums, filled), words)
        return result

    def _series(self, sample: Sample, words: str) -> Series:
        return series(sample, self._context.seed, "nats / token", words)

    def _segment(self, result: Result, name: str, counts: list[int], sample: Sample) -> None:
        found = self._series(sample, "")
        for row, count in enumerate(counts):
            ends = (found.low[row], found.high[row]) if found.low and found.high else (None, None)
            words = f"loss with {count} loops of {name}{self._notes.get((name, count), '')}"
            result.scalars[f"loss_nats@loops={count}.{name}"] = Scalar(found.values[row], words, *ends)
        table: Array = np.array([found.values], dtype=float)
        legend = "loop count: " + ", ".join(map(str, counts))
        words = f"loss by loop count of {name}"
        result.matrices[f"loss_by_loops_nats.{name}"] = Matrix(table, "loss", legend, "nats / token", words)
        needed = loops_needed(counts, found.values, len(self._ends[name]))
        words = (
            f"fewest loops from which on, up to the nominal count, the loss stays within {NEEDED_NATS} nats"
        )
        result.scalars[f"loops_needed@{NEEDED_NATS}.{name}"] = Scalar(needed, words)


def loops_needed(counts: list[int], losses: list[Number], nominal: int) -> int | None:
    """The fewest loops so that from there to the nominal count the loss is near that of the nominal one."""
    known = {c: loss for c, loss in zip(counts, losses, strict=True) if loss is not None and c <= nominal}
    if nominal not in known:
        return None
    far = [count for count, loss in known.items() if loss > known[nominal] + NEEDED_NATS]
    return min(count for count in known if count > max(far, default=0))
