"""Stochastic depth."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from depthkit.model.gains import Gains, per_site
from depthkit.model.init import stream_seed
from depthkit.model.plan import Plan
from depthkit.model.registries import REGULATORS
from depthkit.model.regulators.base import Regulator


@REGULATORS.register("layer_drop")
class LayerDrop(Regulator):
    """Stochastic depth: in training, a visit writes nothing with a probability that grows with depth.

    Both branches drop together, for the whole batch. The draw is a function of `seed` and the optimiser step,
    so that ranks, micro-batches and recomputation agree; without a step it comes from torch's global
    generator, as dropout does. A dropped visit is still computed: the graph is the same at every step.
    """

    equation = "write_l = b_l / (1 - p_l), b_l ~ Bernoulli(1 - p_l), p_l = rate * l / L"
    source = "arXiv:1603.09382 (correction evaluation); growth constant: LayerDrop, arXiv:1909.11556"
    neutral = {"rate": 0.0}

    class Config(Regulator.Config):
        """Settings of `layer_drop`."""

        rate: float = Field(0.1, ge=0, lt=1)
        """Probability of dropping the last visit; 0 is neutral."""
        growth: Literal["linear", "constant"] = "linear"
        """Whether the probability grows as l/L, or is the same at every depth."""
        correction: Literal["training", "evaluation", "none"] = "training"
        """Where expectations are matched: visits kept in training are divided by 1 - p_l, or all visits are
        multiplied by it in evaluation, or neither."""
        seed: int = 0
        """Start of the random stream."""

        def probabilities(self, plan: Plan) -> list[float]:
            """Probability of dropping each visit."""
            if self.growth == "constant":
                return [self.rate] * plan.depth
            return [self.rate * l / plan.total(self.index) for l in plan.indices(self.index)]

    def gains(self, plan: Plan, step: Tensor | None, training: bool) -> Gains:
        """Write gains: 0 for a dropped visit."""
        keep = 1 - torch.tensor(self.config.probabilities(plan), dtype=torch.float64)
        ones, correction = torch.ones_like(keep), self.config.correction
        if training:
            kept = self._draw(plan, step) < keep
            return Gains(write=per_site((kept / (keep if correction == "training" else ones)).tolist()))
        return Gains(write=per_site((keep if correction == "evaluation" else ones).tolist()))

    def _draw(self, plan: Plan, step: Tensor | None) -> Tensor:
        """Uniform numbers, one a visit, the same whichever segments the regulator acts in."""
        generator = None
        if step is not None:
            generator = torch.Generator().manual_seed(stream_seed(self.config.seed, "layer_drop", int(step)))
        uniform = torch.rand(plan.total("executed"), generator=generator, dtype=torch.float64)
        return uniform[[visit.index for visit in plan.visits]]
