"""LayerNorm Scaling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field
from torch import Tensor

from depthkit.model.gains import BRANCHES, Gains, per_branch
from depthkit.model.plan import Plan
from depthkit.model.registries import REGULATORS
from depthkit.model.regulators.base import Regulator
from depthkit.model.regulators.counting import CountingConfig
from depthkit.model.regulators.table import Table

if TYPE_CHECKING:
    from depthkit.model.schema import ModelConfig


@REGULATORS.register("lns")
class LayerNormScaling(Regulator):
    """LayerNorm Scaling: what both branches of block l read is multiplied by l^-exponent.

    The final norm and the embedding are not scaled. Published without scaled initialisation, and with
    `form: fixed`; the other forms start at the same function and differ in what training may change.
    """

    equation = "read_l = l^(-exponent)"
    source = "arXiv:2502.05795 (form fixed, count blocks, exponent 0.5); the other forms are derived"
    neutral = {"exponent": 0.0}

    class Config(CountingConfig):
        """Settings of `lns`."""

        exponent: float = Field(0.5, ge=0)
        """Power of the 1-based depth index; 0.5 is the published form, 0 is neutral."""
        form: Literal["fixed", "folded", "learned"] = "fixed"
        """`fixed`: a constant gain. `folded`: no gain; the norm before the branch starts with weight
        l^-exponent, and then learns. `learned`: a learned scalar a site that starts there."""

        def num_parameters(self, plan: Plan, dim: int) -> int:
            """A scalar a site where it is learned."""
            return Table.num_parameters(plan, self.index, 1) if self.form == "learned" else 0

        def conflict(self, model: ModelConfig) -> str | None:
            """Folding needs a gain of each layer's own before the branch."""
            folded = _no_gain_to_fold(self, model) if self.form == "folded" else None
            return super().conflict(model) or folded

    def build(self, model: ModelConfig) -> None:
        """The table of learned gains, if there is one."""
        self.acting = self.config.acting(model)
        self.table = Table(self.acting, self.config.index, 1) if self.config.form == "learned" else None

    def reset_parameters(self) -> None:
        """A learned gain starts at the fixed one."""
        if self.table is not None:
            self.table.fill(self.acting, self._fixed(self.acting))

    def gains(self, plan: Plan, step: Tensor | None, training: bool) -> Gains:
        """Read gains l^-exponent."""
        if self.config.form == "folded":
            return Gains()
        return Gains(read=self._fixed(plan) if self.table is None else self.table(plan))

    def norm_start(self, plan: Plan, layer: int, branch: str) -> float:
        """The same factor on the norm's own gain, in the folded form."""
        if self.config.form != "folded":
            return 1.0
        first = next(visit.index for visit in plan.visits if visit.layer == layer)
        return self.config.indices(plan)[first][BRANCHES.index(branch)] ** -self.config.exponent

    def _fixed(self, plan: Plan) -> Tensor:
        power = -self.config.exponent
        return per_branch((mixer**power, ffn**power) for mixer, ffn in self.config.indices(plan))


def _no_gain_to_fold(config: Any, model: ModelConfig) -> str | None:
    for segment in config.segments(model):
        name = f"(segment {segment.name!r})"
        gains = model.norm_of(segment).num_parameters(1) and model.norm_gains(segment)
        if not (model.placement_of(segment).before_branch and gains):
            return f"form: folded needs a norm with a gain before the branch {name}"
        if segment.num_loops > 1 and config.index != "stored":
            return f"form: folded gives all visits of a layer one gain; set index: stored {name}"
    return None
