"""What the model loses when one branch of a visit is skipped: attention (the mixer), or the feed-forward."""

from __future__ import annotations

from typing import Any

from depthkit.utilization.deltas import Deltas
from depthkit.utilization.edits import Edit, SkipBranch
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Step, Trace
from depthkit.utilization.result import Result

BRANCHES = {"mixer": "its mixer (attention)", "ffn": "its feed-forward"}


@PROBES.register("branch_ablation")
class BranchAblation(Probe):
    """Loss of the model with one branch of one visit writing nothing, minus the loss of the intact model.

    The rest of the visit runs on what is left: without its mixer, the feed-forward reads the state that came
    in. What a norm after the branch or a multiplier would make of the write is silent with it. In parallel
    blocks the two branches are independent.
    """

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._reasons: dict[int, str] = {}
        self._deltas: dict[str, Deltas] = {}

    def see(self, trace: Trace) -> None:
        """Ask which visits have branches that can be told apart."""
        found = {visit: trace.path.inseparable(visit) for visit in range(self.depth)}
        self._reasons = {visit: reason for visit, reason in found.items() if reason}

    def edits(self) -> list[Edit]:
        """Each branch of each visit skipped in turn."""
        visits = [visit for visit in range(self.depth) if visit not in self._reasons]
        for branch in BRANCHES:
            edits: dict[int, Edit] = {visit: SkipBranch(visit, branch) for visit in visits}
            self._deltas[branch] = Deltas(edits, self.depth, len(self.context.sequences))
        return [edit for deltas in self._deltas.values() for edit in deltas.edits]

    def update(self, step: Step) -> None:
        """Add the end of one altered stream."""
        for deltas in self._deltas.values():
            deltas.add(step)

    def compute(self) -> Result:
        """One series a branch."""
        result = Result()
        for branch, deltas in self._deltas.items():
            name = f"ablation_delta_nats.skip_{branch}"
            definition = f"loss with the visit without {BRANCHES[branch]} minus intact loss"
            result.samples[name] = deltas.sample
            result.per_visit[name] = deltas.series(self.context.seed, definition)
        if self._reasons:
            first, count = min(self._reasons), f"{len(self._reasons)} of {self.depth}"
            result.skipped["branch_ablation"] = f"{count} visits, such as {first}: {self._reasons[first]}"
        return result
