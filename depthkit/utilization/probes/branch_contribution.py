"""How much each branch of a visit adds to the stream, and in which direction (arXiv:2505.13898).

Shapes: B sequences, T positions, D width.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Trace
from depthkit.utilization.result import Result
from depthkit.utilization.structure.inside import PARALLEL
from depthkit.utilization.table import both_means

READS = {"mixer": "the state it reads", "ffn": "the state it reads (with the mixer's write, if in sequence)"}


@PROBES.register("branch_contribution")
class BranchContribution(Probe):
    """Size and direction of what the mixer (a) and the feed-forward (m) of a visit write.

    Writes are differences of the residual stream, a = h_mid - h and m = h_out - h_mid, which is right
    wherever norms and gains stand: the output of the branch's module is not what is added. They are held
    against what the branch reads, |a| / |h| and |m| / |h + a|, or |m| / |h| where both branches read the same
    state. The state between them is the visit run without its feed-forward, one layer evaluation a visit.

    Tokens whose ratio or cosine is undefined (a zero state, or a write of exactly zero for the cosine) are
    left out of the mean. Where branches cannot be told apart the visit has no number.
    """

    alike = frozenset({"_unknown"})

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._size = {branch: self.table(self.depth) for branch in READS}
        self._direction = {branch: self.table(self.depth) for branch in READS}
        self._unknown: dict[int, str] = {}

    def see(self, trace: Trace) -> None:
        """Add the writes of one micro-batch."""
        for visit in range(self.depth):
            if reason := trace.path.inseparable(visit):
                self._unknown[visit] = reason
            else:
                self._look(trace, visit)

    def _look(self, trace: Trace, visit: int) -> None:
        carried, _ = trace.path.run(visit, trace.entered[visit], without=("ffn",))
        self.context.count(len(trace.batch), 1)
        before, after = trace.before[visit].float(), trace.after[visit].float()
        middle = trace.path.stream(carried).float()
        self._add("mixer", trace, visit, middle - before, before)
        self._add("ffn", trace, visit, after - middle, before if self._parallel(visit) else middle)

    def _parallel(self, visit: int) -> bool:
        """Whether both branches read the visit's input."""
        structure = self.context.subject.structure
        layer = self.context.places[visit].layer
        return structure is not None and structure.inside[layer].reason == PARALLEL

    def _add(self, branch: str, trace: Trace, visit: int, write: Tensor, read: Tensor) -> None:
        carried, added = read.norm(dim=-1), write.norm(dim=-1)
        some = trace.batch.mask & (carried > 0)
        self._size[branch].add(visit, trace.rows, added / carried, some)
        cosine = F.cosine_similarity(write, read, dim=-1, eps=1e-30)
        self._direction[branch].add(visit, trace.rows, cosine, some & (added > 0))

    def compute(self) -> Result:
        """Two series for each branch, each with and without token 0."""
        result, seed = Result(), self.context.seed
        for branch, words in READS.items():
            size = f"norm of what the {branch} writes over the norm of {words}, per token"
            direction = f"cosine of what the {branch} writes with {words}, per token"
            name = f"{branch}_contribution"
            result.per_visit |= both_means(name, self._size[branch], seed, "ratio", size)
            name = f"{branch}_update_cosine"
            result.per_visit |= both_means(name, self._direction[branch], seed, "cosine", direction)
        if self._unknown:
            first, reason = next(iter(self._unknown.items()))
            told = f"{len(self._unknown)} of {self.depth} visits, such as {first}: {reason}"
            result.skipped["branch_contribution"] = told
        return result
