"""What visits write, and whether a model's state can be replaced by another.

Shapes: B sequences, T positions, D width.
"""

from __future__ import annotations

from torch import Tensor

from depthkit.utilization.accumulators import Scratch
from depthkit.utilization.replay import Step, Trace

SMALLEST = 1e-6
"""Norm below which a write is not divided by."""


def write(before: Tensor, after: Tensor) -> Tensor:
    """What a visit adds to the stream `[B, T, D]`, fp32 or better."""
    return after.float() - before.float()


class IntactWrites(Scratch):
    """The intact model's writes and their norms; the last one is kept, since a sweep asks again and again."""

    def __init__(self) -> None:
        self._kept: tuple[tuple[int, int], tuple[Tensor, Tensor]] | None = None

    def at(self, step: Step) -> tuple[Tensor, Tensor]:
        """Write `[B, T, D]` and norm `[B, T]` at the step's visit."""
        key = (step.visit, step.trace.rows.start)
        if self._kept is None or self._kept[0] != key:
            added = write(step.trace.before[step.visit], step.trace.after[step.visit])
            self._kept = key, (added, added.norm(dim=-1))
        return self._kept[1]


def irreplaceable(trace: Trace) -> str | None:
    """Why no other state can be put in place of the stream; None when one can."""
    try:
        trace.path.with_stream(trace.entered[0], trace.before[0])
    except ValueError as error:
        return str(error)
    return None
