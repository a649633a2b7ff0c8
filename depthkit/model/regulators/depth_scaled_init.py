"""Depth-scaled initialisation."""

from __future__ import annotations

from pydantic import Field

from depthkit.model.plan import Plan
from depthkit.model.registries import REGULATORS
from depthkit.model.regulators.base import Regulator
from depthkit.model.roles import MATRICES, OUTPUTS, Rule


@REGULATORS.register("depth_scaled_init")
class DepthScaledInit(Regulator):
    """Depth-scaled initialisation: the std of every matrix of block l is multiplied by l^-exponent.

    A looped layer is initialised once, for its first visit.
    """

    equation = "std(matrices of block l) *= l^(-exponent)"
    source = "arXiv:1908.11365 (every matrix); outputs_only is derived"
    neutral = {"exponent": 0.0}

    class Config(Regulator.Config):
        """Settings of `depth_scaled_init`."""

        exponent: float = Field(0.5, ge=0)
        """Power of the 1-based depth index; 0.5 is the published form, 0 is neutral."""
        outputs_only: bool = False
        """Scale only the output projections (o, down)."""

    def rule(self, plan: Plan, layer: int | None, branch: str | None, role: str) -> Rule:
        """Initial std of the matrices of a block."""
        if layer is None or role not in (OUTPUTS if self.config.outputs_only else MATRICES):
            return Rule()
        first = next(visit.index for visit in plan.visits if visit.layer == layer)
        return Rule(init=plan.indices(self.config.index)[first] ** -self.config.exponent)
