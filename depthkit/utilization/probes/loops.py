"""Whether a loop converges, and what each loop is worth.

Sources: latent differences and loss by loop count arXiv:2502.05171; fixed points arXiv:1909.01377.

Shapes: B sequences, T positions, D width, R loops.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from depthkit.registry import Spec
from depthkit.utilization.accumulators import Total
from depthkit.utilization.loop_counts import LoopCounts, boundaries
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Trace
from depthkit.utilization.result import Result
from depthkit.utilization.statistics import Sample
from depthkit.utilization.table import both_means, series

STEPS = {
    "loop_residual": ("ratio", "|h_r - h_(r-1)| / |h_(r-1)|: how far the loop moved the state, per token"),
    "loop_cosine": ("cosine", "cosine of h_r and h_(r-1), per token"),
    "loop_contraction": (
        "ratio",
        "|h_r - h_(r-1)| / |h_(r-1) - h_(r-2)|, per token: below 1 the loop converges",
    ),
    "loop_step_cosine": (
        "cosine",
        "cosine of the step h_r - h_(r-1) with the step before, per token: -1 goes back and forth",
    ),
}
CORRELATION = "mean cosine of the states of two tokens of a sequence; 1 when all tokens have become alike"
UNLOOPED = "no segment of this model is looped"


@PROBES.register("loops")
class Loops(Probe):
    """Steps of the state from loop to loop, likeness of tokens, and the loss at other loop counts.

    h_r is the residual stream after the last visit of loop r, before what happens between loops. A number of
    loop r stands at that visit. Losses at other counts come from the model's own forward, one segment at a
    time, the others at their nominal counts.
    """

    class Config(Spec):
        """Settings of `loops`."""

        counts: list[Annotated[int, Field(ge=1)]] | None = Field(None, min_length=1)
        """Loop counts to run every looped segment for; null is 1 to R, and 2 R."""

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._ends, self._reasons = boundaries(context.places)
        self._tables = {name: self.table(self.depth) for name in STEPS}
        self._pairs = Total(2, self.depth, len(context.sequences))
        self._counts = LoopCounts(context, config.counts, self._ends)

    def see(self, trace: Trace) -> None:
        """Add the states between the loops of one micro-batch, and run other loop counts."""
        for ends in self._ends.values():
            states = [trace.after[visit].float() for visit in ends]
            for loop, visit in enumerate(ends):
                self._steps(trace, visit, states[max(0, loop - 2) : loop + 1])
                self._pairs.add((slice(None), visit, trace.rows), pairs(states[loop], trace.batch.mask))
        if self._ends:
            self._counts.see(trace)

    def _steps(self, trace: Trace, visit: int, states: list[Tensor]) -> None:
        """Compare the last of up to three successive states with those before."""
        mask = trace.batch.mask
        if len(states) > 1:
            before, now = states[-2:]
            carried, step = before.norm(dim=-1), now - before
            self._add("loop_residual", trace, visit, step.norm(dim=-1) / carried, mask & (carried > 0))
            self._add("loop_cosine", trace, visit, *_cosine(now, before, mask))
        if len(states) > 2:
            earlier = before - states[-3]
            moved = earlier.norm(dim=-1)
            self._add("loop_contraction", trace, visit, step.norm(dim=-1) / moved, mask & (moved > 0))
            self._add("loop_step_cosine", trace, visit, *_cosine(step, earlier, mask))

    def _add(self, name: str, trace: Trace, visit: int, values: Tensor, valid: Tensor) -> None:
        self._tables[name].add(visit, trace.rows, values, valid)

    def compute(self) -> Result:
        """Series at the last visit of every loop, and the loss by loop count."""
        if not self._ends:
            return Result(skipped={"loops": next(iter(self._reasons.values()), UNLOOPED)})
        result, seed = self._counts.compute(), self.context.seed
        result.skipped |= {f"loops[{name}]": reason for name, reason in self._reasons.items()}
        for name, (unit, words) in STEPS.items():
            result.per_visit |= both_means(name, self._tables[name], seed, unit, words)
        sample = Sample(*self._pairs.values)
        result.per_visit["token_correlation.mean"] = series(sample, seed, "cosine", CORRELATION)
        if max(len(ends) for ends in self._ends.values()) < 3:
            result.skipped["loop_contraction"] = "two successive steps need three loops"
        return result


def _cosine(one: Tensor, other: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine per token, and where it is defined."""
    defined = (one.norm(dim=-1) > 0) & (other.norm(dim=-1) > 0)
    return F.cosine_similarity(one, other, dim=-1, eps=1e-30), mask & defined


def pairs(state: Tensor, mask: Tensor) -> np.ndarray[Any, Any]:
    """Sum of the cosines of all pairs of different tokens of a sequence, and how many pairs: `[2, B]`.

    sum_(i != j) u_i . u_j = |sum_i u_i|^2 - sum_i |u_i|^2
    """
    units = F.normalize(state.double(), dim=-1, eps=1e-300).where(mask[..., None], 0.0)
    squares = units.square().sum(-1)
    total = units.sum(1).square().sum(-1) - squares.sum(-1)
    real = (squares > 0).sum(-1).double()
    return torch.stack([total, real * (real - 1)]).cpu().numpy()
