"""How far skipping a visit changes which experts later visits choose.

Shapes: B sequences, T positions, k experts a token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from depthkit.utilization.edits import Edit, skip
from depthkit.utilization.effects import PairTable
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Step, Trace
from depthkit.utilization.result import Matrix, Result

NAME = "routing_change.mean"
EXPERTS = "experts"


@PROBES.register("routing_change")
class RoutingChange(Probe):
    """1 - (share of a token's experts at visit l that are still chosen when visit s is skipped).

    0: the same experts; 1: none of them. A change of the loss can be a change of routing. It shares the skips
    of `ablation`.
    """

    reads_aux = True

    alike = frozenset({"_routed"})

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._routed: set[int] = set()
        self._table = PairTable(self.depth, len(context.sequences))

    def see(self, trace: Trace) -> None:
        """Ask which visits say whom they chose."""
        self._routed = {visit for visit, aux in enumerate(trace.aux) if EXPERTS in aux}

    def edits(self) -> list[Edit]:
        """Each visit skipped in turn, as long as a visit after it has experts."""
        return [skip(visit) for visit in range(max(self._routed, default=0))]

    def update(self, step: Step) -> None:
        """Add one step of one altered stream."""
        if step.visit == step.edit.first or step.visit not in self._routed:
            return
        change = changed(step.trace.aux[step.visit][EXPERTS], step.aux[EXPERTS])
        mask = step.trace.batch.mask
        self._table.add((step.edit.first, step.visit), step.trace.rows, change, torch.ones_like(change), mask)

    def compute(self) -> Result:
        """A matrix (skipped s, later l) and its mean over later visits."""
        words = "share of a token's experts at visit l that change when visit s is skipped"
        later = self._table.later(self.context.seed, "fraction", words + ", mean over the later visits")
        result = Result(per_visit={NAME: later})
        result.matrices[NAME] = Matrix(self._table.matrix(), "skipped s", "later l", "fraction", words)
        if not self._routed:
            result.skipped[NAME] = "no visit says which experts it chose"
        return result


def changed(intact: Tensor, altered: Tensor) -> Tensor:
    """Share of the intact experts `[B, T, k]` that are not among the altered ones. `[B, T]`"""
    kept = (intact[..., :, None] == altered[..., None, :]).any(-1)
    return 1 - kept.double().mean(-1)
