"""Run a model's visits one by one, from recorded prefixes.

A full forward is recorded once per micro-batch: which module each visit called, with which arguments, and
the state before and after. Every altered stream is then the suffix of visits run on another state, which is
what a hooked full forward computes, bit for bit, without the prefix and without touching the model.
The sweep is visit-major: visit m runs for every micro-batch and every altered stream before visit m+1, so
weights are needed once. Skipping each visit of L in turn costs L(L-1)/2 layer evaluations after the L of
the recording: L(L+1)/2 in all.

Shapes: B sequences of a micro-batch, T positions, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from depthkit.utilization.capture import Call, Capture, capturing
from depthkit.utilization.sequences import Sequences
from depthkit.utilization.subject import Place, Scores, Subject


@dataclass(frozen=True)
class Trace:
    """The intact forward of one micro-batch.

    Attributes:
        rows: which sequences of the evaluation these are.
        batch: their ids, targets, mask.
        calls: one per visit.
        states: L + 1 residual states [B, T, D]: before the first visit, then after each.
        scores: losses of the intact model.
    """

    rows: slice
    batch: Sequences
    calls: list[Call]
    states: list[Tensor]
    scores: Scores

    @property
    def depth(self) -> int:
        """Number of visits."""
        return len(self.calls)


@dataclass(frozen=True)
class Step:
    """One visit of an altered stream, in which the visit `source` was skipped.

    At `visit == source` the state passed unchanged (`before is after`) and nothing was computed.
    `scores` is there at the last visit only.
    """

    source: int
    visit: int
    trace: Trace
    before: Tensor
    after: Tensor
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

    def _count(self, rows: int) -> None:
        self._rows_done += rows
        self._advance(rows / len(self.sequences))

    def record(self) -> list[Trace]:
        """The intact forward of every micro-batch."""
        return [self._record(rows) for rows in self.parts]

    def _record(self, rows: slice) -> Trace:
        batch = self.sequences.rows(rows, self.subject.device)
        with capturing(self.subject.layers) as seen:
            self.subject.run(batch.ids, batch.documents)
        states = chain(seen)
        self._count(len(batch) * len(seen.calls))
        return Trace(rows, batch, seen.calls, states, self.subject.score(states[-1], batch.targets))

    def places(self, trace: Trace) -> list[Place]:
        """Where each visit sits in the model."""
        return self.subject.places(trace.calls)

    def skip_sweep(self, traces: list[Trace]) -> Iterator[Step]:
        """Skip each visit in turn: yields every step of every altered stream, visit by visit."""
        streams: list[list[Tensor]] = [[] for _ in traces]
        for visit in range(traces[0].depth):
            for trace, live in zip(traces, streams, strict=True):
                for source, before in enumerate(live):
                    live[source] = trace.calls[visit](before)
                    self._count(len(trace.batch))
                    yield self._step(source, visit, trace, before, live[source])
                live.append(trace.states[visit])
                yield self._step(visit, visit, trace, live[visit], live[visit])

    def _step(self, source: int, visit: int, trace: Trace, before: Tensor, after: Tensor) -> Step:
        last = visit == trace.depth - 1
        scores = self.subject.score(after, trace.batch.targets) if last else None
        return Step(source, visit, trace, before, after, scores)


def skip(trace: Trace, visit: int) -> Tensor:
    """The last residual state when one visit is skipped, replayed. [B, T, D]."""
    state = trace.states[visit]
    for call in trace.calls[visit + 1 :]:
        state = call(state)
    return state


def chain(seen: Capture) -> list[Tensor]:
    """The L + 1 states of a recorded forward.

    Raises:
        ValueError: no layer ran, a state is not finite, or something changes the stream between two
            visits, so that visits alone cannot be replayed.
    """
    if not seen.calls:
        raise ValueError("no layer was called in a forward of the model: are these its layers?")
    for visit, after in enumerate(seen.after):
        if not bool(torch.isfinite(after).all()):
            raise ValueError(f"the residual state after visit {visit} is not finite: nothing can be measured")
        if visit + 1 < len(seen.before) and not torch.equal(after, seen.before[visit + 1]):
            raise ValueError(_broken(visit))
    return [*seen.before, seen.after[-1]]


def _broken(visit: int) -> str:
    return (
        f"the state that visit {visit + 1} reads is not the state that visit {visit} returned: something "
        "changes the stream between them (an injection, a norm), and replaying visits alone would be wrong"
    )


def sweep_cost(depth: int, skip_each: bool) -> int:
    """Layer evaluations of an evaluation, baseline included."""
    return depth + math.comb(depth, 2) if skip_each else depth
