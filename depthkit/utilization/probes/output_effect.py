"""How far skipping a visit moves what the model predicts (arXiv:2505.13898).

Shapes: B sequences, T positions, K single positions, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from depthkit.utilization.accumulators import Largest
from depthkit.utilization.edits import Edit, skip
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.probes.lens import FLOOR
from depthkit.utilization.replay import Step
from depthkit.utilization.result import Result, Series
from depthkit.utilization.statistics import numbers
from depthkit.utilization.table import both_means

L2, KL = "output_effect_l2", "output_effect_kl_nats"
DISTANCE = "distance ||p_skipped - p_intact||_2 of the predicted distributions when the visit is skipped"


@PROBES.register("output_effect")
class OutputEffect(Probe):
    """Distance of the predictions with a visit skipped from the intact ones, at every token.

    Unlike the loss it does not ask which prediction is better. It shares the skips of `ablation`, and reads
    both distributions out anew for each: 2 V D operations a token, twice.
    """

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._tables = {name: self.table(self.depth) for name in (L2, KL)}
        self._largest = Largest(self.depth)

    def edits(self) -> list[Edit]:
        """Each visit skipped in turn."""
        return [skip(visit) for visit in range(self.depth)]

    def update(self, step: Step) -> None:
        """Compare the end of one altered stream with the intact one."""
        if step.final is None:
            return
        mask, visit = step.trace.batch.mask, step.edit.first
        distance, divergence = self._distances(step.trace.final, step.final)
        self._tables[L2].add(visit, step.trace.rows, distance, mask)
        self._tables[KL].add(visit, step.trace.rows, divergence, mask)
        if bool(mask.any()):
            self._largest.add(visit, float(distance.where(mask, 0.0).max()))

    def _distances(self, intact: Tensor, altered: Tensor) -> tuple[Tensor, Tensor]:
        """Both `[B, T]`, the head run on a chunk of positions at a time."""
        size = self.context.subject.chunk(intact.shape[-1])
        parts = zip(intact.flatten(0, 1).split(size), altered.flatten(0, 1).split(size), strict=True)
        pairs = [self._compare(one, other) for one, other in parts]
        distances, divergences = zip(*pairs, strict=True)
        return torch.cat(distances).view(intact.shape[:2]), torch.cat(divergences).view(intact.shape[:2])

    def _compare(self, intact: Tensor, altered: Tensor) -> tuple[Tensor, Tensor]:
        # A head may forbid tokens by -inf; a finite floor makes their share of a divergence 0, not NaN.
        logp, logq = (
            self.context.subject.read_out(state[None])[0].log_softmax(-1).clamp(min=FLOOR)
            for state in (intact, altered)
        )
        p, q = logp.exp(), logq.exp()
        return (p - q).norm(dim=-1), torch.linalg.vecdot(p, logp - logq)

    def compute(self) -> Result:
        """Means of both, with and without token 0, and the largest distance."""
        seed = self.context.seed
        divergence = "KL(p_intact || p_skipped) when the visit is skipped, per token"
        result = Result(
            both_means(L2, self._tables[L2], seed, "distance", f"{DISTANCE}, per token")
            | both_means(KL, self._tables[KL], seed, "nats", divergence)
        )
        words = f"{DISTANCE}, largest of all tokens: compares only equal samples"
        result.per_visit[f"{L2}.max_all_tokens"] = Series(numbers(self._largest.values), "distance", words)
        result.samples |= {f"{name}.mean": table.sample for name, table in self._tables.items()}
        return result
