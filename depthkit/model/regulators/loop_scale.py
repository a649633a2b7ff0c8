"""Residual scaling by the number of loops."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from depthkit.model.gains import Gains, per_site
from depthkit.model.plan import Plan
from depthkit.model.registries import REGULATORS
from depthkit.model.regulators.base import Regulator


@REGULATORS.register("loop_scale")
class LoopScale(Regulator):
    """Loop scaling: in a segment of K layers looped R times, branches write 1/R of what one loop could.

    A layer that is visited R times adds nearly the same vector each time, so writes sum with R and not with
    sqrt(R). A segment that is not looped has R = 1.
    """

    equation = "loom: write = scale / (R sqrt(2K)); residual: write = scale / (R sqrt(K))"
    source = "residual: arXiv:2606.18524; loom: derived, the same bound with branches counted"
    neutral = {"form": "none"}

    class Config(Regulator.Config):
        """Settings of `loop_scale`; R and K are those of the segment as configured, whatever `index`."""

        form: Literal["loom", "residual", "none"] = "loom"
        """`loom` counts the m = 2K branches of one loop, `residual` its K layers; `none` is neutral."""
        scale: float = Field(1.0, gt=0)
        """Constant factor, lambda in the published form."""

        def factor(self, loops: int, layers: int) -> float:
            """What a segment's branches write is multiplied by."""
            if self.form == "none":
                return 1.0
            return self.scale / (loops * (2 * layers if self.form == "loom" else layers) ** 0.5)

    def gains(self, plan: Plan, step: Tensor | None, training: bool) -> Gains:
        """Write gains, one value a segment; other loop counts than the model's own leave them as they are."""
        nominal = plan.nominal or plan
        segments = [visit.key.segment for visit in plan.visits]
        return Gains(write=per_site(self.config.factor(nominal.loops[s], nominal.slots[s]) for s in segments))
