"""What the model loses when a visit writes what it wrote in another sequence.

Shapes: N sequences, T positions, D width, L visits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from depthkit.registry import Spec
from depthkit.utilization.accumulators import Totals
from depthkit.utilization.deltas import Deltas
from depthkit.utilization.edits import Edit, Replace
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Step, Trace
from depthkit.utilization.result import Result
from depthkit.utilization.writes import irreplaceable

NAME = "ablation_delta_nats.resampled_write"


@PROBES.register("resample_ablation")
class ResampleAblation(Probe):
    """Loss with a visit's write taken from another sequence, at the same position, minus the intact loss.

    What is taken away is what the visit knows of this sequence; the size and kind of its write stay. Which
    sequence gives to which is a seeded cycle through all; where the giver is padding, the next one with a
    token there gives, and where none has, the write stays. The intact writes of all visits are kept on the
    host: visits x sequences x positions x width numbers of the stream's type, for example 1 GB for 32 visits,
    16 sequences of 128 tokens and a width of 4096 in fp32.
    """

    class Config(Spec):
        """Settings of `resample_ablation`."""

        max_bytes: int = Field(2**32, ge=1)
        """Most host memory for the writes; beyond it the metric is null."""

    alike = frozenset({"_reason"})

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._writes = Totals()
        self._reason: str | None = "needs two sequences" if len(context.sequences) < 2 else None
        self._givers = givers(context.sequences.mask.cpu(), context.seed)
        self._deltas = Deltas({}, self.depth, len(context.sequences))

    def see(self, trace: Trace) -> None:
        """Keep the writes of one micro-batch."""
        self._reason = self._reason or irreplaceable(trace) or self._too_large(trace)
        if self._reason:
            return
        for visit, (before, after) in enumerate(zip(trace.before, trace.after, strict=True)):
            self._writes.add_rows(visit, (after - before).cpu(), trace.rows, len(self.context.sequences))

    def _shape(self, trace: Trace) -> tuple[int, ...]:
        return self.depth, len(self.context.sequences), *trace.final.shape[1:]

    def _too_large(self, trace: Trace) -> str | None:
        size = torch.Size(self._shape(trace)).numel() * trace.final.element_size()
        if size <= self.config.max_bytes:
            return None
        return f"the writes would take {size} bytes, max_bytes allows {self.config.max_bytes}"

    def edits(self) -> list[Edit]:
        """Each visit replaced in turn."""
        if self._reason:
            return []
        edits: dict[int, Edit] = {
            visit: Replace(visit, NAME, self._giving(self._writes.values[visit]))
            for visit in range(self.depth)
        }
        self._deltas = Deltas(edits, self.depth, len(self.context.sequences))
        return self._deltas.edits

    def _giving(self, writes: Tensor) -> Callable[[Tensor, slice], Tensor]:
        positions = torch.arange(writes.shape[1])
        return lambda stream, rows: stream + writes[self._givers[rows], positions].to(stream.device)

    def update(self, step: Step) -> None:
        """Add the end of one altered stream."""
        self._deltas.add(step)

    def compute(self) -> Result:
        """One series."""
        words = "loss with the visit's write of another sequence at the same position, minus intact loss"
        result = Result(
            per_visit={NAME: self._deltas.series(self.context.seed, words)},
            samples={NAME: self._deltas.sample},
        )
        if self._reason:
            result.skipped[NAME] = self._reason
        return result


def givers(mask: Tensor, seed: int) -> Tensor:
    """Which sequence gives its write to each token `[N, T]`: a real token of another one, where there is one.

    Args:
        mask: `[N, T]` bool, real tokens.
        seed: of the cycle.
    """
    count = len(mask)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    found = torch.arange(count)[:, None].expand(mask.shape).clone()
    open_ = torch.ones_like(mask)
    for step in range(1, count):
        giver = torch.empty_like(order)
        giver[order] = order.roll(-step)
        takes = open_ & mask[giver]
        found = torch.where(takes, giver[:, None], found)
        open_ &= ~takes
        if not bool(open_.any()):
            break
    return found
