"""Block influence (ShortGPT, arXiv:2403.03853)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Trace
from depthkit.utilization.result import Result
from depthkit.utilization.table import both_means


@PROBES.register("influence")
class Influence(Probe):
    """Block influence BI = 1 - cos(state before, state after), mean over all tokens that are not padding."""

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._table = self.table(self.depth)

    def see(self, trace: Trace) -> None:
        """Add one micro-batch."""
        for visit, (before, after) in enumerate(zip(trace.before, trace.after, strict=True)):
            u, v = (F.normalize(state.float(), dim=-1, eps=1e-30) for state in (before, after))
            # |u - v|^2 / 2 is 1 - cos without the cancellation: an unchanged state gives exactly 0.
            influence = (u - v).square().sum(-1) / 2
            shortest = torch.minimum(before.float().norm(dim=-1), after.float().norm(dim=-1))
            self._table.add(visit, trace.rows, influence, trace.batch.mask & (shortest > 0))

    def compute(self) -> Result:
        """One series, with and without token 0."""
        definition = "1 - cosine of the states before and after the visit, per token"
        return Result(both_means("block_influence", self._table, self.context.seed, "1 - cosine", definition))
