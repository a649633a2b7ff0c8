"""What a regulator is: a schedule of gains over the plan, and rules for parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor, nn

from depthkit.model.gains import Gains
from depthkit.model.plan import Plan
from depthkit.model.roles import Rule
from depthkit.registry import Spec

if TYPE_CHECKING:
    from depthkit.model.schema import ModelConfig


class Regulator(nn.Module):
    """Base class; a kind overrides `gains`, `rule` or both, and may own learned parameters.

    Class attributes `equation` and `source` are the kind's documentation. Learned parameters have at least
    one dimension (sharding refuses 0-d), take the role `schedule` and are filled by `reset_parameters`,
    never only in `__init__`: construction on the meta device would lose them.
    """

    equation: ClassVar[str] = ""
    source: ClassVar[str] = ""
    owns_norm_gains: ClassVar[bool] = False
    """Whether norms have no per-channel gain of their own where the regulator acts."""

    class Config(Spec):
        """Settings every regulator has."""

        index: Literal["executed", "stored", "nominal"] = "executed"
        """Which depth index l (and total L) a formula uses where layers are looped: visits, stored layers, or
        the nominal depth at the configured loop count."""

        def num_parameters(self, plan: Plan, dim: int) -> int:
            """Learned parameters the regulator adds."""
            return 0

    def __init__(self, config: Any, dim: int):
        super().__init__()
        self.config = config
        self.dim = dim

    def build(self, model: ModelConfig) -> None:
        """Make parameters whose shape depends on more than the width, and note what the gains need to know of
        the model; called once, after construction and before any parameter is filled."""

    def gains(self, plan: Plan, step: Tensor | None, training: bool) -> Gains:
        """Gains at every site of `plan`, fp32; absent where the regulator does not act."""
        return Gains()

    def rule(self, plan: Plan, layer: int | None, branch: str | None, role: str) -> Rule:
        """Multipliers for one parameter; `layer` counts stored layers from 0, None outside the blocks."""
        return Rule()
