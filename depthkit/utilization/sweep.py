"""One pass over the visits, in which every altered stream of every micro-batch takes the visit at hand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from depthkit.utilization.edits import Edit
from depthkit.utilization.path import Aux
from depthkit.utilization.stack import Stacks
from depthkit.utilization.subject import Subject
from depthkit.utilization.trace import Step, Trace

Streams = dict[Edit, Any]


class Sweep:
    """Visit-major: visit m runs for every micro-batch and every stream before visit m+1.

    Args:
        count: called with the number of sequences of every visit that is computed.
        stacks: runs streams together where they take the visit at hand and nothing else; None: each alone.
        exact: streams that run alone in any case.
    """

    def __init__(
        self,
        subject: Subject,
        count: Callable[[int], None] = lambda rows: None,
        stacks: Stacks | None = None,
        exact: Collection[Edit] = (),
    ):
        self._subject, self._count, self._stacks, self._exact = subject, count, stacks, exact

    def steps(self, traces: Sequence[Trace], edits: Sequence[Edit]) -> Iterator[Step]:
        """Every step of these different edits."""
        live: list[Streams] = [{} for _ in traces]
        for visit in range(traces[0].depth):
            begun = [edit for edit in edits if edit.first <= visit]
            for trace, streams in zip(traces, live, strict=True):
                yield from self._visit(visit, trace, streams, begun)

    def _visit(self, visit: int, trace: Trace, streams: Streams, begun: list[Edit]) -> Iterator[Step]:
        together: list[Edit] = []
        for edit in begun:
            if self._stacks is not None and edit in streams and edit.plain(visit) and edit not in self._exact:
                together.append(edit)
            else:
                yield self._alone(edit, visit, trace, streams)
        if self._stacks is not None:
            for group in self._stacks.groups(trace, together):
                yield from self._together(group, visit, trace, streams)

    def _alone(self, edit: Edit, visit: int, trace: Trace, streams: Streams) -> Step:
        path = trace.path
        carried = path.enter(visit, streams[edit]) if edit in streams else trace.entered[visit]
        before = path.stream(carried)

        def run(which: int, state: Any, without: Collection[str] = ()) -> tuple[Any, Aux]:
            self._count(len(trace.batch))
            return path.run(which, state, without)

        carried, aux = edit.apply(visit, carried, run, path)
        after = path.stream(carried)
        streams[edit] = left = path.leave(visit, carried)
        final = path.stream(left) if visit == trace.depth - 1 else None
        scores = None if final is None else self._subject.score(final, trace.batch.targets)
        return Step(edit, visit, trace, before, after, aux, final, scores)

    def _together(self, group: Sequence[Edit], visit: int, trace: Trace, streams: Streams) -> Iterator[Step]:
        assert self._stacks is not None
        around = self._stacks.run(trace, visit, [streams[edit] for edit in group])
        for edit, found in zip(group, around, strict=True):
            self._count(len(trace.batch))
            streams[edit] = found.carried
            yield Step(edit, visit, trace, found.before, found.after, {}, found.final, found.scores)
