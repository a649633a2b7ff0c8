"""A learned scalar on what every branch writes."""

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


@REGULATORS.register("skip_init")
class SkipInit(Regulator):
    """SkipInit: what a branch writes is multiplied by a learned scalar a site, 0 at the start.

    Acts under whatever norm the config names; `rezero` is the form without norms.
    """

    equation = "write_l = alpha_l, learned, alpha_l = initial at the start"
    source = "arXiv:2002.10444"
    neutral = {"initial": 1.0}

    class Config(Regulator.Config):
        """Settings of `skip_init`. With `index: stored` all visits of a layer share their scalars."""

        initial: float = 0.0
        """Value at the start; 1 is neutral there."""

        def num_parameters(self, plan: Plan, dim: int) -> int:
            """A scalar a site."""
            return Table.num_parameters(plan, self.index, 1)

    def build(self, model: ModelConfig) -> None:
        """The table of learned scalars."""
        self.table = Table(self.config.acting(model), self.config.index, 1)

    def reset_parameters(self) -> None:
        """Every scalar at its start."""
        torch.nn.init.constant_(self.table.gain, self.config.initial)

    def gains(self, plan: Plan, step: Tensor | None, training: bool) -> Gains:
        """Write gains, learned."""
        return Gains(write=self.table(plan))
