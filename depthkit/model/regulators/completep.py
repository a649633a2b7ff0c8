"""CompleteP: hyper-parameters that transfer over depth and width."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from pydantic import Field
from torch import Tensor

from depthkit.model.gains import Gains, per_site
from depthkit.model.plan import Plan
from depthkit.model.registries import REGULATORS
from depthkit.model.regulators.base import Regulator
from depthkit.model.roles import MATRICES, Rule

if TYPE_CHECKING:
    from depthkit.model.schema import ModelConfig


@REGULATORS.register("completep")
class CompleteP(Regulator):
    """CompleteP: what transfers from a base model of depth L0 and width D0 to one m_L deeper and m_D wider.

    Matrices inside blocks take the multipliers below; norms and biases there take m_L^(alpha-1) on the
    learning rate; embedding, final norm and head take none. The published attention scale is 1/head_dim:
    `scale_power: 1` of the mixer.
    """

    equation = (
        "m_L = L/base_depth, m_D = D/base_dim; write = m_L^-alpha, logits = 1/m_D; matrices: "
        "std m_D^-1/2, lr m_L^(alpha-1)/m_D, eps m_L^-alpha/m_D, weight decay m_D"
    )
    source = "arXiv:2505.01618"
    neutral = {"base_depth": None}

    class Config(Regulator.Config):
        """Settings of `completep`."""

        alpha: float = Field(1.0, ge=0)
        """Power of depth on what branches write; 1 is CompleteP, 0.5 is depth-muP."""
        base_depth: int | None = Field(2, ge=1)
        """Depth L0 at which the hyper-parameters were tuned; null means this model's, which is neutral."""
        base_dim: int | None = Field(None, ge=1)
        """Width D0 at which the hyper-parameters were tuned; null means this model's."""
        scale_init: bool = True
        """Multiply the initial std of matrices by m_D^-1/2; `init: fan_in` does that by itself."""

        def conflict(self, model: ModelConfig) -> str | None:
            """Width must not be counted twice in the initial std."""
            wider = self.base_dim not in (None, model.dim)
            if wider and self.scale_init and model.init.kind == "fan_in":
                return "init fan_in already shrinks with width; set init: normal, or scale_init: false here"
            return super().conflict(model)

    def gains(self, plan: Plan, step: Tensor | None, training: bool) -> Gains:
        """Write gains, and a gain on the logits."""
        write = self._depth(plan) ** -self.config.alpha
        return Gains(write=per_site([write] * plan.depth), logits=torch.tensor([1 / self._width]))

    def rule(self, plan: Plan, layer: int | None, branch: str | None, role: str) -> Rule:
        """Multipliers inside blocks."""
        if layer is None or role not in MATRICES | {"norm", "bias"}:
            return Rule()
        depth, width, alpha = self._depth(plan), self._width, self.config.alpha
        if role not in MATRICES:
            return Rule(lr=depth ** (alpha - 1))
        return Rule(
            init=width**-0.5 if self.config.scale_init else 1.0,
            lr=depth ** (alpha - 1) / width,
            eps=depth**-alpha / width,
            weight_decay=width,
        )

    def _depth(self, plan: Plan) -> float:
        total = plan.total(self.config.index)
        return total / (self.config.base_depth or total)

    @property
    def _width(self) -> float:
        return self.dim / (self.config.base_dim or self.dim)
