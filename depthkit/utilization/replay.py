"""Run a model's visits one by one, from recorded prefixes.

A full forward is recorded once per micro-batch: what every visit read and gave. Every altered stream is then
the suffix of visits run on another state, which is what a hooked full forward computes, bit for bit, without
the prefix and without touching the model. A sweep is visit-major: visit m runs for every micro-batch and
every altered stream before visit m+1, so weights are needed once (more streams than `LIVE_BYTES` holds take
turns). Skipping each visit of L in turn costs L(L-1)/2 layer evaluations after the L of the recording:
L(L+1)/2 in all.

Shapes: B sequences of a micro-batch, T positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from depthkit.utilization.edits import Edit
from depthkit.utilization.path import Aux, Path
from depthkit.utilization.record import record
from depthkit.utilization.sequences import Sequences
from depthkit.utilization.subject import Place, Scores, Subject

LIVE_BYTES = 2**32
"""Altered streams that a sweep holds at once (4 GB); many edits of a long sample are swept in groups."""


@dataclass(frozen=True)
class Trace:
    """The intact forward of one micro-batch.

    Attributes:
        rows: which sequences of the evaluation these are.
        batch: their ids, targets, mask.
        path: the visits, which can be run on other states.
        entered: what every visit was given, as the path carries it.
        before, after: the residual streams [B, T, D] that every visit reads and gives.
        final: the residual stream that the head reads.
        aux: what the branches of every visit had to say.
        scores: losses of the intact model.
    """

    rows: slice
    batch: Sequences
    path: Path
    entered: list[Any]
    before: list[Tensor]
    after: list[Tensor]
    final: Tensor
    aux: list[Aux]
    scores: Scores

    @property
    def depth(self) -> int:
        """Number of visits."""
        return self.path.depth

    @property
    def states(self) -> list[Tensor]:
        """L + 1 streams: what the first visit reads, then what each gives."""
        return [self.before[0], *self.after]


@dataclass(frozen=True)
class Step:
    """One visit of an altered stream.

    `before` and `after` are its residual streams around the visit; where the edit runs nothing they are the
    same tensor. `final`, the stream that the head reads, and `scores` are there at the last visit only.
    """

    edit: Edit
    visit: int
    trace: Trace
    before: Tensor
    after: Tensor
    aux: Aux
    final: Tensor | None
    scores: Scores | None


class Engine:
    """Records and replays one subject on one set of sequences.

    Args:
        batch_tokens: about how many tokens go through a layer at once; at least one sequence does.
        advance: called with the number of layer evaluations just done (a fraction for a micro-batch).
    """

    def __init__(
        self,
        subject: Subject,
        sequences: Sequences,
        batch_tokens: int = 1024,
        advance: Callable[[float], None] = lambda _: None,
    ):
        self.subject = subject
        self.sequences = sequences
        self._rows_done = 0
        self._advance = advance
        size = max(1, batch_tokens // sequences.ids.shape[1])
        count = len(sequences)
        self.parts = [slice(start, min(start + size, count)) for start in range(0, count, size)]

    @property
    def layer_evals(self) -> float:
        """Visits computed so far, one unit being one visit of all sequences."""
        evals = self._rows_done / len(self.sequences)
        return int(evals) if evals.is_integer() else evals

    def count(self, rows: int, visits: float = 1) -> None:
        """Note that a visit (or so many) was computed for some sequences."""
        self._rows_done += int(rows * visits)
        self._advance(rows * visits / len(self.sequences))

    def record(self) -> list[Trace]:
        """The intact forward of every micro-batch."""
        return [self._record(rows) for rows in self.parts]

    def _record(self, rows: slice) -> Trace:
        batch = self.sequences.rows(rows, self.subject.device)
        seen = record(self.subject, batch)
        seen.path.rows = rows
        self.count(len(batch), seen.path.depth)
        scores = self.subject.score(seen.final, batch.targets)
        return Trace(
            rows, batch, seen.path, seen.entered, seen.before, seen.after, seen.final, seen.aux, scores
        )

    def places(self, trace: Trace) -> list[Place]:
        """Where each visit sits in the model."""
        return self.subject.places([trace.path.module(visit) for visit in range(trace.depth)])

    def sweep(self, traces: list[Trace], edits: Iterable[Edit]) -> Iterator[Step]:
        """Every step of every altered stream, visit by visit; equal edits are one stream."""
        waiting = sorted(dict.fromkeys(edits), key=lambda edit: edit.first)
        most = max(1, LIVE_BYTES // sum(trace.final.nbytes for trace in traces))
        for start in range(0, len(waiting), most):
            yield from self._sweep(traces, waiting[start : start + most])

    def _sweep(self, traces: list[Trace], waiting: list[Edit]) -> Iterator[Step]:
        live: list[dict[Edit, Any]] = [{} for _ in traces]
        for visit in range(traces[0].depth):
            begun = [edit for edit in waiting if edit.first <= visit]
            for trace, streams in zip(traces, live, strict=True):
                for edit in begun:
                    yield self._advance_stream(edit, visit, trace, streams)

    def _advance_stream(self, edit: Edit, visit: int, trace: Trace, streams: dict[Edit, Any]) -> Step:
        path = trace.path
        carried = path.enter(visit, streams[edit]) if edit in streams else trace.entered[visit]
        before = path.stream(carried)

        def run(which: int, state: Any, without: Collection[str] = ()) -> tuple[Any, Aux]:
            self.count(len(trace.batch))
            return path.run(which, state, without)

        carried, aux = edit.apply(visit, carried, run, path)
        after = path.stream(carried)
        streams[edit] = path.leave(visit, carried)
        final = path.stream(streams[edit]) if visit == trace.depth - 1 else None
        scores = None if final is None else self.subject.score(final, trace.batch.targets)
        return Step(edit, visit, trace, before, after, aux, final, scores)


def replay(trace: Trace, edit: Edit) -> Tensor:
    """The last residual stream `[B, T, D]` of one altered stream."""
    path, carried = trace.path, trace.entered[edit.first]
    for visit in range(edit.first, trace.depth):
        if visit > edit.first:
            carried = path.enter(visit, carried)
        carried, _ = edit.apply(visit, carried, path.run, path)
        carried = path.leave(visit, carried)
    return path.stream(carried)


def sweep_cost(depth: int, edits: Iterable[Edit]) -> float:
    """Layer evaluations of an evaluation, the recording included."""
    return depth + sum(edit.visits(depth) for edit in dict.fromkeys(edits))
