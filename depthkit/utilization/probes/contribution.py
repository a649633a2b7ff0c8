"""How much each visit adds to the stream, and in which direction (arXiv:2505.13898).

Shapes: B sequences, T positions, D width.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F

from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Trace
from depthkit.utilization.result import Result
from depthkit.utilization.table import both_means


@PROBES.register("contribution")
class Contribution(Probe):
    """Size and direction of a visit's write d = h_out - h_in against the state h_in it was added to.

    Tokens whose ratio or cosine is undefined (a zero state, or a write of exactly zero for the cosine)
    are left out of the mean.
    """

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._size, self._direction = self.table(self.depth), self.table(self.depth)

    def see(self, trace: Trace) -> None:
        """Add the writes of one micro-batch."""
        for visit, (before, after) in enumerate(zip(trace.before, trace.after, strict=True)):
            before, write = before.float(), after.float() - before.float()
            carried, added = before.norm(dim=-1), write.norm(dim=-1)
            some = trace.batch.mask & (carried > 0)
            self._size.add(visit, trace.rows, added / carried, some)
            cosine = F.cosine_similarity(write, before, dim=-1, eps=1e-30)
            self._direction.add(visit, trace.rows, cosine, some & (added > 0))

    def compute(self) -> Result:
        """Two series, each with and without token 0."""
        seed = self.context.seed
        size = "norm of the visit's write over the norm of the state it reads, per token"
        direction = "cosine of the visit's write with the state it reads: below 0 erases, above 0 amplifies"
        return Result(
            both_means("relative_contribution", self._size, seed, "ratio", size)
            | both_means("update_cosine", self._direction, seed, "cosine", direction)
        )
