"""A constant, or a power of depth, on what every branch writes."""

from __future__ import annotations

from torch import Tensor

from depthkit.model.gains import Gains, per_branch
from depthkit.model.plan import Plan
from depthkit.model.registries import REGULATORS
from depthkit.model.regulators.base import Regulator
from depthkit.model.regulators.counting import CountingConfig


@REGULATORS.register("residual_scale")
class ResidualScale(Regulator):
    """Residual scaling: what block l writes is multiplied by scale L^total_power l^index_power.

    1/L is `total_power: -1`; with L blocks of two branches, 1/sqrt(2L) is
    `{count: branches, total_power: -0.5}`.
    """

    equation = "write_l = scale * L^total_power * l^index_power"
    source = "residual branch scaling; 1/sqrt(2L) as analysed in arXiv:2002.04745 and arXiv:1901.09321"
    neutral = {}

    class Config(CountingConfig):
        """Settings of `residual_scale`."""

        scale: float = 1.0
        """Constant factor; 1 with both powers 0 is neutral."""
        total_power: float = 0.0
        """Power of the total depth L."""
        index_power: float = 0.0
        """Power of the 1-based depth index l."""

    def gains(self, plan: Plan, step: Tensor | None, training: bool) -> Gains:
        """Write gains."""
        scale = self.config.scale * float(self.config.total(plan)) ** self.config.total_power
        power = self.config.index_power
        indices = self.config.indices(plan)
        return Gains(write=per_branch((scale * mixer**power, scale * ffn**power) for mixer, ffn in indices))
