"""What the model loses when one branch of a visit is skipped: attention (the mixer), or the feed-forward."""

from __future__ import annotations

from typing import Any

from depthkit.utilization.deltas import DeltaProbe
from depthkit.utilization.edits import Edit, SkipBranch
from depthkit.utilization.probe import Context
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Trace
from depthkit.utilization.result import Result

BRANCHES = {"mixer": "its mixer (attention)", "ffn": "its feed-forward"}


@PROBES.register("branch_ablation")
class BranchAblation(DeltaProbe):
    """Loss of the model with one branch of one visit writing nothing, minus the loss of the intact model.

    The rest of the visit runs on what is left: without its mixer, the feed-forward reads the state that came
    in. What a norm after the branch or a multiplier would make of the write is silent with it. In parallel
    blocks the two branches are independent.
    """

    alike = frozenset({"_reasons"})

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._reasons: dict[int, str] = {}

    def see(self, trace: Trace) -> None:
        """Ask which visits have branches that can be told apart."""
        found = {visit: trace.path.inseparable(visit) for visit in range(self.depth)}
        self._reasons = {visit: reason for visit, reason in found.items() if reason}

    def edits(self) -> list[Edit]:
        """Each branch of each visit skipped in turn."""
        visits = [visit for visit in range(self.depth) if visit not in self._reasons]
        for branch in BRANCHES:
            self.group(branch, {visit: SkipBranch(visit, branch) for visit in visits})
        return super().edits()

    def compute(self) -> Result:
        """One series a branch."""
        words = {b: f"loss with the visit without {said} minus intact loss" for b, said in BRANCHES.items()}
        result = self.answers("ablation_delta_nats.skip_", words)
        if self._reasons:
            first, count = min(self._reasons), f"{len(self._reasons)} of {self.depth}"
            result.skipped["branch_ablation"] = f"{count} visits, such as {first}: {self._reasons[first]}"
        return result
