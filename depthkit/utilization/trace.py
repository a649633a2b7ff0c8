"""What an engine hands to probes: the intact forward of a micro-batch, and one visit of an altered stream.

Shapes: B sequences of a micro-batch, T positions, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from depthkit.utilization.edits import Edit
from depthkit.utilization.path import Aux, Path
from depthkit.utilization.sequences import Sequences
from depthkit.utilization.subject import Scores


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
    entered: Sequence[Any]
    before: Sequence[Tensor]
    after: Sequence[Tensor]
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
    same tensor. `aux` is empty where streams were stacked. `final`, the stream that the head reads, and
    `scores` are there at the last visit only.
    """

    edit: Edit
    visit: int
    trace: Trace
    before: Tensor
    after: Tensor
    aux: Aux
    final: Tensor | None
    scores: Scores | None
