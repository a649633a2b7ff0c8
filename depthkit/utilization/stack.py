"""Several altered streams of one micro-batch as one batch: fewer and larger calls of a layer.

Sums in a larger batch round otherwise, so results are equal to about 1e-5, not bit for bit, and what the
branches say (`aux`, such as the experts of a token) is not told.

Shapes: B sequences of a micro-batch, T positions, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from depthkit.utilization.nested import joined, parted
from depthkit.utilization.path import Path
from depthkit.utilization.subject import Scores, Subject
from depthkit.utilization.trace import Trace


class Around(NamedTuple):
    """One visit of one stream: the residual around it, what is carried on, and at the last visit its end."""

    before: Tensor
    after: Tensor
    carried: Any
    final: Tensor | None
    scores: Scores | None


class Stacks:
    """Runs streams of these traces together.

    Args:
        subject: scores the ends.
        rules: what the first trace's path learned; see `Path.repeats`.
        tokens: about how many go through a layer at once.
    """

    def __init__(self, subject: Subject, rules: Any, tokens: int):
        self._subject, self._rules, self._tokens = subject, rules, tokens
        self._paths: dict[tuple[int, int], Path] = {}

    def most(self, trace: Trace) -> int:
        """How many streams of a micro-batch fit into one call."""
        return max(1, self._tokens // trace.batch.ids.numel())

    def groups(self, trace: Trace, streams: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Streams in groups that fit."""
        most = self.most(trace)
        return (streams[start : start + most] for start in range(0, len(streams), most))

    def path(self, trace: Trace, count: int) -> Path:
        """The micro-batch's path for `count` copies of it, kept."""
        key = (trace.rows.start, count)
        if key not in self._paths:
            self._paths[key] = trace.path.repeated(count, self._rules)
        return self._paths[key]

    def run(self, trace: Trace, visit: int, streams: Sequence[Any]) -> list[Around]:
        """One visit of several streams, each as it was left by the visit before."""
        count = len(streams)
        path = self.path(trace, count)
        entered = path.enter(visit, joined(streams))
        carried, _ = path.run(visit, entered)
        left = path.leave(visit, carried)
        ends = self._ends(trace, path, left, count) if visit == trace.depth - 1 else [(None, None)] * count
        around = (parted(value, count) for value in (path.stream(entered), path.stream(carried), left))
        return [Around(*parts, *end) for *parts, end in zip(*around, ends, strict=True)]

    def _ends(self, trace: Trace, path: Path, left: Any, count: int) -> list[tuple[Tensor, Scores]]:
        final = path.stream(left)
        scores = self._subject.score(final, trace.batch.targets.repeat(count, 1))
        parts = zip(parted(scores.nats, count), parted(scores.correct, count), strict=True)
        return list(zip(parted(final, count), (Scores(*part) for part in parts), strict=True))
