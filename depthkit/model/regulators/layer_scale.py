"""A learned vector on what every branch writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from depthkit.model.gains import Gains
from depthkit.model.plan import Plan
from depthkit.model.registries import REGULATORS
from depthkit.model.regulators.base import Regulator
from depthkit.model.regulators.table import Table

if TYPE_CHECKING:
    from depthkit.model.schema import ModelConfig


@REGULATORS.register("layer_scale")
class LayerScale(Regulator):
    """LayerScale: what a branch writes is multiplied by a learned vector a site, small at the start."""

    equation = "write_l = lambda_l in R^D, learned; at the start 0.1 (L <= 18), 1e-5 (L <= 24) or 1e-6"
    source = "arXiv:2103.17239"
    neutral = {"initial": 1.0}

    class Config(Regulator.Config):
        """Settings of `layer_scale`. With `index: stored` all visits of a layer share their vectors."""

        initial: float | None = None
        """Value of every channel at the start, 1 is neutral; null takes the published one for the depth."""

        def num_parameters(self, plan: Plan, dim: int) -> int:
            """A vector a site."""
            return Table.num_parameters(plan, self.index, dim)

        def start(self, plan: Plan) -> float:
            """`initial`, or the value published for this depth."""
            total = plan.total(self.index)
            published = 0.1 if total <= 18 else 1e-5 if total <= 24 else 1e-6
            return published if self.initial is None else self.initial

    def build(self, model: ModelConfig) -> None:
        """The table of learned vectors."""
        self.table = Table(self.config.acting(model), self.config.index, self.dim)
        self.start = self.config.start(model.plan())

    def reset_parameters(self) -> None:
        """Every channel at its start."""
        torch.nn.init.constant_(self.table.gain, self.start)

    def gains(self, plan: Plan, step: Tensor | None, training: bool) -> Gains:
        """Write gains, learned, a vector a site."""
        return Gains(write=self.table(plan))
