"""What the model loses when a visit's write is replaced by its mean.

Shapes: B sequences, T positions, D width, L visits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from depthkit.registry import Spec
from depthkit.utilization.accumulators import Totals
from depthkit.utilization.deltas import Deltas
from depthkit.utilization.edits import Edit, Replace
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Step, Trace
from depthkit.utilization.result import Result
from depthkit.utilization.writes import irreplaceable, write

NAME = "ablation_delta_nats.mean_write"


@PROBES.register("mean_ablation")
class MeanAblation(Probe):
    """Loss with h + (mean write) as a visit's output, minus the intact loss.

    Skipping also takes away what a visit writes everywhere alike; this leaves that, and takes away only what
    depends on the token. The mean is over all tokens of all sequences that are not padding.
    """

    class Config(Spec):
        """Settings of `mean_ablation`."""

        token0_apart: bool = False
        """Whether position 0, whose write is often a hundred times the others', has a mean of its own."""

    alike = frozenset({"_reason"})

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._sums = Totals()
        self._reason: str | None = None
        self._name = NAME + ("_token0_apart" if config.token0_apart else "")
        self._deltas = Deltas({}, self.depth, len(context.sequences))

    def see(self, trace: Trace) -> None:
        """Add the writes of one micro-batch, those at position 0 and the others, in fp64 on the host."""
        self._reason = irreplaceable(trace)
        mask = trace.batch.mask
        for visit, (before, after) in enumerate(zip(trace.before, trace.after, strict=True)):
            added = write(before, after).double() * mask[..., None]
            both = torch.stack([added[:, :1].sum((0, 1)), added[:, 1:].sum((0, 1))])
            self._sums.add(visit, both.cpu())

    def means(self) -> Tensor:
        """`[L, 2, D]`: what is written at position 0, and at the others."""
        sums = torch.stack([self._sums.values[visit] for visit in range(self.depth)])
        mask = self.context.sequences.mask.cpu()
        counts = torch.stack([part.sum().double() for part in (mask[:, :1], mask[:, 1:])])
        if self.config.token0_apart:
            return sums / counts.clamp(min=1)[:, None]
        whole = sums.sum(1, keepdim=True) / counts.sum().clamp(min=1)
        return whole.expand_as(sums)

    def edits(self) -> list[Edit]:
        """Each visit replaced in turn."""
        if self._reason:
            return []
        edits: dict[int, Edit] = {
            visit: Replace(visit, self._name, _adding(mean)) for visit, mean in enumerate(self.means())
        }
        self._deltas = Deltas(edits, self.depth, len(self.context.sequences))
        return self._deltas.edits

    def update(self, step: Step) -> None:
        """Add the end of one altered stream."""
        self._deltas.add(step)

    def compute(self) -> Result:
        """One series."""
        apart = ", position 0 apart" if self.config.token0_apart else ""
        words = f"loss with the visit's mean write (over tokens and sequences{apart}) minus intact loss"
        return Result(
            per_visit={self._name: self._deltas.series(self.context.seed, words)},
            samples={self._name: self._deltas.sample},
            skipped={self._name: self._reason} if self._reason else {},
        )


def _adding(mean: Tensor) -> Callable[[Tensor, slice], Tensor]:
    """Add the first row of `[2, D]` at position 0 and the second elsewhere."""

    def replaced(stream: Tensor, rows: slice) -> Tensor:
        both = mean.to(stream)
        changed = stream + both[1]
        changed[:, 0] = stream[:, 0] + both[0]
        return changed

    return replaced
