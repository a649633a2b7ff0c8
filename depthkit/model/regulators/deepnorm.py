"""DeepNorm: a constant on the carried stream of a Post-LN block, and a smaller initialisation."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from depthkit.model.gains import Gains, per_site
from depthkit.model.plan import Plan
from depthkit.model.registries import REGULATORS
from depthkit.model.regulators.base import Regulator
from depthkit.model.roles import Rule

SHRUNK = frozenset({"v", "o", "up", "down"})
"""Roles that start at beta; gate does not, so that a gated feed-forward scales by beta^2 as the original."""


@REGULATORS.register("deepnorm")
class DeepNorm(Regulator):
    """DeepNorm: Post-LN with the stream multiplied by alpha before the norm, and a smaller initialisation.

    The initial std of v, o, up and down is multiplied by beta, that of q, k and gate is not. The paper's norm
    is LayerNorm; the model has no final norm unless `final_norm` asks for one.
    """

    equation = "x <- norm(alpha x + branch(x)), alpha = (2L)^exponent; std(v, o, up, down) *= (8L)^-exponent"
    source = "arXiv:2203.00555 (decoder)"
    neutral = {"exponent": 0.0}
    placements: ClassVar[tuple[str, ...]] = ("post",)
    needs_norm = True
    keeps_final_norm = False

    class Config(Regulator.Config):
        """Settings of `deepnorm`."""

        exponent: float = Field(0.25, ge=0)
        """Power of depth in alpha and beta; 0.25 is the published form, 0 is neutral."""

    def gains(self, plan: Plan, step: Tensor | None, training: bool) -> Gains:
        """Skip gains alpha."""
        alpha = (2 * plan.total(self.config.index)) ** self.config.exponent
        return Gains(skip=per_site([alpha] * plan.depth))

    def rule(self, plan: Plan, layer: int | None, branch: str | None, role: str) -> Rule:
        """Initial std beta of the matrices that bound the update."""
        if layer is None or role not in SHRUNK:
            return Rule()
        return Rule(init=(8 * plan.total(self.config.index)) ** -self.config.exponent)
