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

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from depthkit.utilization.accumulators import Ranks
from depthkit.utilization.edits import Edit
from depthkit.utilization.nested import num_bytes
from depthkit.utilization.offload import Offload
from depthkit.utilization.options import ReplayOptions
from depthkit.utilization.path import Path
from depthkit.utilization.record import record
from depthkit.utilization.sequences import Sequences
from depthkit.utilization.stack import Stacks
from depthkit.utilization.stacking import stacking
from depthkit.utilization.subject import Place, Subject
from depthkit.utilization.sweep import Sweep
from depthkit.utilization.trace import Step, Trace

DEFAULTS = ReplayOptions()
LIVE_BYTES = 2**32
"""Altered streams that a sweep holds at once (4 GB); many edits of a long sample are swept in groups."""


class Engine:
    """Records and replays one subject on one set of sequences.

    Args:
        batch_tokens: about how many tokens go through a layer at once; at least one sequence does.
        advance: called with the number of layer evaluations just done (a fraction for a micro-batch).
        options: stacking and where recorded states are kept.
        ranks: the processes that share the sequences, of which this one has a slice; None: it is alone.

    Raises:
        ValueError: there are fewer sequences than processes.
    """

    def __init__(
        self,
        subject: Subject,
        sequences: Sequences,
        batch_tokens: int = 1024,
        advance: Callable[[float], None] = lambda _: None,
        options: ReplayOptions = DEFAULTS,
        ranks: Ranks | None = None,
    ):
        self.subject = subject
        self.sequences = sequences
        self._rows_done = 0
        self._advance = advance
        self._options, self._batch_tokens, self._ranks = options, batch_tokens, ranks
        self._offload = self._room()
        self._stacks: Stacks | None = None
        self._undecided = options.stack
        self._carried = 1
        size = max(1, batch_tokens // sequences.ids.shape[1])
        own = part(len(sequences), ranks)
        self._own = own.stop - own.start
        self.parts = [slice(at, min(at + size, own.stop)) for at in range(own.start, own.stop, size)]

    @property
    def layer_evals(self) -> float:
        """Visits computed so far, one unit being one visit of all sequences."""
        return self._evals(self._rows_done)

    def _evals(self, rows: int) -> float:
        evals = rows / len(self.sequences)
        return int(evals) if evals.is_integer() else evals

    def count(self, rows: int, visits: float = 1) -> None:
        """Note that a visit (or so many) was computed for some sequences."""
        self._rows_done += int(rows * visits)
        self._advance(rows * visits / self._own)

    def record(self) -> list[Trace]:
        """The intact forward of every micro-batch."""
        self._offload = self._room()
        return [self._record(rows) for rows in self.parts]

    def _room(self) -> Offload:
        processes = self._ranks.size if self._ranks else 1
        return Offload(self._options.offload_bytes, self.subject.device, processes)

    def _record(self, rows: slice) -> Trace:
        batch = self.sequences.rows(rows, self.subject.device)
        seen = record(self.subject, batch)
        seen.path.rows = rows
        self.count(len(batch), seen.path.depth)
        scores = self.subject.score(seen.final, batch.targets)
        self._carried = max(self._carried, *(num_bytes(carried) // len(batch) for carried in seen.entered))
        return Trace(rows, batch, seen.path, *self._offload.keep(seen), seen.aux, scores)

    def places(self, trace: Trace) -> list[Place]:
        """Where each visit sits in the model."""
        return self.subject.places([trace.path.module(visit) for visit in range(trace.depth)])

    def sweep(
        self, traces: list[Trace], edits: Iterable[Edit], exact: Collection[Edit] = ()
    ) -> Iterator[Step]:
        """Every step of every altered stream, visit by visit; equal edits are one stream.

        Args:
            exact: streams that are not stacked with others, because what their branches say is asked for.
        """
        waiting = sorted(dict.fromkeys(edits), key=lambda edit: edit.first)
        if self._undecided:
            self._stacks, self._undecided = stacking(self.subject, traces, self._batch_tokens), False
        sweep = Sweep(self.subject, self.count, self._stacks, exact)
        most = max(1, LIVE_BYTES // (self._carried * self._own))
        for start in range(0, len(waiting), most):
            yield from sweep.steps(traces, waiting[start : start + most])

    def cost(self) -> dict[str, Any]:
        """What a report says of it: layer evaluations, sequences of a micro-batch, and what was opted for.

        Of all processes together, if there are several.
        """
        ranks, own = self._ranks, (self._rows_done, self._offload.moved, self._stacks is not None)
        rows, moved, stacks = zip(*(ranks.gather(own) if ranks else [own]), strict=True)
        first = self.parts[0]
        found = {"layer_evals": self._evals(sum(rows)), "micro_batch": first.stop - first.start}
        stacked = {"stacked": all(stacks)} if self._options.stack else {}
        several = {"processes": ranks.size} if ranks else {}
        return found | stacked | ({"offloaded_bytes": sum(moved)} if sum(moved) else {}) | several


def part(count: int, ranks: Ranks | None) -> slice:
    """Which of `count` sequences are this process': as many, or one more, than the others', in order.

    Raises:
        ValueError: there are fewer sequences than processes.
    """
    if ranks is None:
        return slice(0, count)
    if count < ranks.size:
        raise ValueError(f"sequences: {count} are fewer than the {ranks.size} processes that share them")
    start, end = (count * rank // ranks.size for rank in (ranks.rank, ranks.rank + 1))
    return slice(start, end)


def replay(trace: Trace, edit: Edit) -> Tensor:
    """The last residual stream `[B, T, D]` of one altered stream."""
    return resumed(trace.path, trace.entered, edit)


def resumed(path: Path, entered: Sequence[Any] | Mapping[int, Any], edit: Edit) -> Tensor:
    """The same of any recorded forward; `entered` holds what the first visit that differs was given."""
    carried = entered[edit.first]
    for visit in range(edit.first, path.depth):
        if visit > edit.first:
            carried = path.enter(visit, carried)
        carried, _ = edit.apply(visit, carried, path.run, path)
        carried = path.leave(visit, carried)
    return path.stream(carried)


def sweep_cost(depth: int, edits: Iterable[Edit]) -> float:
    """Layer evaluations of an evaluation, the recording included."""
    return depth + sum(edit.visits(depth) for edit in dict.fromkeys(edits))
