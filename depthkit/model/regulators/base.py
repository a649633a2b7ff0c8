"""What a regulator is: a schedule of gains over the plan, and rules for parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor, nn

from depthkit.model.gains import Gains
from depthkit.model.placement import PLACEMENTS
from depthkit.model.plan import Plan
from depthkit.model.roles import Rule
from depthkit.registry import Spec

if TYPE_CHECKING:
    from typing_extensions import Self

    from depthkit.model.schema import ModelConfig, SegmentConfig


class Regulator(nn.Module):
    """Base class; a kind overrides `gains`, `rule` or both, and may own learned parameters.

    Class attributes `equation` and `source` are the kind's documentation. Learned parameters have at least
    one dimension (sharding refuses 0-d), take the role `schedule` and are filled by `reset_parameters`,
    never only in `__init__`: construction on the meta device would lose them.
    """

    equation: ClassVar[str] = ""
    source: ClassVar[str] = ""
    neutral: ClassVar[dict[str, Any] | None] = None
    """Settings at which the model equals one without the regulator bit for bit, or None if there are none."""
    placements: ClassVar[tuple[str, ...]] = ()
    """The norm placements the kind works under; empty means all."""
    needs_norm: ClassVar[bool | None] = None
    """True: `norm: none` is refused; False: every other norm is; None: either will do."""
    keeps_final_norm: ClassVar[bool] = True
    """Whether a model that ends in this regulator's blocks has a final norm where the config does not say."""
    owns_norm_gains: ClassVar[bool] = False
    """Whether norms have no per-channel gain of their own where the regulator acts."""

    class Config(Spec):
        """Settings every regulator has."""

        index: Literal["auto", "executed", "stored", "nominal"] = "auto"
        """Which depth index l (and total L) a formula uses where layers are looped: executed counts visits,
        stored the layers of one loop, nominal visits at the configured loop count, whatever is run; auto is
        nominal where loop counts are sampled, else executed."""

        def num_parameters(self, plan: Plan, dim: int) -> int:
            """Learned parameters the regulator adds where it acts at the visits of `plan`."""
            return 0

        def in_segment(self) -> Self:
            """A copy of the settings as they hold for a regulator of one segment."""
            return self.model_copy()

        def segments(self, model: ModelConfig) -> list[SegmentConfig]:
            """The segments in which the regulator acts; equal settings elsewhere are another regulator."""
            return [s for s in model.segments if any(r is self for r in model.regulators_of(s))]

        def acting(self, model: ModelConfig) -> Plan:
            """The visits at which the regulator acts, at the most loops there can be."""
            return model.longest_plan().part(frozenset(segment.name for segment in self.segments(model)))

        def conflict(self, model: ModelConfig) -> str | None:
            """Why the regulator cannot act in this model; None if it can. Kinds extend it."""
            cls: type[Regulator] = self.component  # type: ignore[attr-defined]
            for segment in self.segments(model):
                reason = _placement_conflict(cls, model, segment) or _norm_conflict(cls, model, segment)
                if reason:
                    return f"{reason} (segment {segment.name!r})"
            return None

    def __init__(self, config: Any, dim: int):
        super().__init__()
        self.config = config
        self.dim = dim

    def build(self, model: ModelConfig) -> None:
        """Make the parameters whose shape depends on the model; called once, after construction."""

    def gains(self, plan: Plan, step: Tensor | None, training: bool) -> Gains:
        """Gains at every site of `plan`, fp32; absent where the regulator does not act."""
        return Gains()

    def rule(self, plan: Plan, layer: int | None, branch: str | None, role: str) -> Rule:
        """Multipliers for one parameter; `layer` counts stored layers from 0, None outside the blocks."""
        return Rule()

    def norm_start(self, plan: Plan, layer: int, branch: str) -> float:
        """What the gain of the norm before a branch of a stored layer starts at."""
        return 1.0


def _placement_conflict(cls: type[Regulator], model: ModelConfig, segment: SegmentConfig) -> str | None:
    allowed = {name: PLACEMENTS[name] for name in cls.placements}
    if not allowed or model.placement_of(segment) in allowed.values():
        return None
    return f"works under placement {' or '.join(allowed)} only; set placement: {next(iter(allowed))}"


def _norm_conflict(cls: type[Regulator], model: ModelConfig, segment: SegmentConfig) -> str | None:
    absent = model.norm_of(segment).kind == "none"
    if cls.needs_norm is None or cls.needs_norm != absent:
        return None
    return "needs a norm, not norm: none" if absent else "works without a norm only; set norm: none"
