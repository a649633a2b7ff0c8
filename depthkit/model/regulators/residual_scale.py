"""A constant, or a power of depth, on what every branch writes."""

from __future__ import annotations

from torch import Tensor

from depthkit.model.gains import Gains, per_site
from depthkit.model.plan import Plan
from depthkit.model.registries import REGULATORS
from depthkit.model.regulators.base import Regulator


@REGULATORS.register("residual_scale")
class ResidualScale(Regulator):
    """Residual scaling: what block l writes is multiplied by scale L^total_power l^index_power.

    With L blocks of two branches each, 1/sqrt(2L) is `scale: 0.7071, total_power: -0.5`, and 1/L is
    `total_power: -1`.
    """

    equation = "write_l = scale * L^total_power * l^index_power"
    source = "Residual branch scaling; 1/sqrt(2L) as analysed in arXiv:2002.04745 and arXiv:1901.09321"

    class Config(Regulator.Config):
        """Settings of `residual_scale`."""

        scale: float = 1.0
        """Constant factor; 1 with both powers 0 is neutral."""
        total_power: float = 0.0
        """Power of the total depth L."""
        index_power: float = 0.0
        """Power of the 1-based depth index l."""

    def gains(self, plan: Plan, step: Tensor | None, training: bool) -> Gains:
        """Write gains, the same for mixer and ffn."""
        total = float(plan.total(self.config.index)) ** self.config.total_power
        scale = self.config.scale * total
        return Gains(
            write=per_site(scale * l**self.config.index_power for l in plan.indices(self.config.index))
        )
