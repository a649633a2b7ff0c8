"""LayerNorm Scaling."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from depthkit.model.gains import Gains, per_site
from depthkit.model.plan import Plan
from depthkit.model.registries import REGULATORS
from depthkit.model.regulators.base import Regulator


@REGULATORS.register("lns")
class LayerNormScaling(Regulator):
    """LayerNorm Scaling: what both branches of block l read is multiplied by l^-exponent.

    The final norm and the embedding are not scaled. Published without scaled initialisation.
    """

    equation = "read_l = l^(-exponent)"
    source = "arXiv:2502.05795"

    class Config(Regulator.Config):
        """Settings of `lns`."""

        exponent: float = Field(0.5, ge=0)
        """Power of the 1-based block index; 0.5 is the published form, 0 is neutral."""

    def gains(self, plan: Plan, step: Tensor | None, training: bool) -> Gains:
        """Read gains l^-exponent, the same for mixer and ffn."""
        return Gains(read=per_site(l**-self.config.exponent for l in plan.indices(self.config.index)))
