"""GPT-2's scaled initialisation of output projections."""

from __future__ import annotations

from pydantic import Field

from depthkit.model.plan import Plan
from depthkit.model.registries import REGULATORS
from depthkit.model.regulators.base import Regulator
from depthkit.model.roles import OUTPUTS, Rule


@REGULATORS.register("scaled_init")
class ScaledInit(Regulator):
    """Scaled initialisation: the std of output projections (o, down) is multiplied by (2L)^-exponent."""

    equation = "std(o, down) *= (2L)^(-exponent)"
    source = "GPT-2 (Radford et al. 2019); Megatron-LM, arXiv:1909.08053"
    neutral = {"exponent": 0.0}

    class Config(Regulator.Config):
        """Settings of `scaled_init`."""

        exponent: float = Field(0.5, ge=0)
        """Power of the number of branches 2L; 0.5 is GPT-2's, 0 is neutral."""

    def rule(self, plan: Plan, layer: int | None, branch: str | None, role: str) -> Rule:
        """Initial std of output projections inside blocks."""
        if layer is None or role not in OUTPUTS:
            return Rule()
        return Rule(init=(2 * plan.total(self.config.index)) ** -self.config.exponent)
