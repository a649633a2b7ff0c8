"""LayerRoPE: one shared gain vector for all norms, with read and write scales that depend on depth."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from depthkit.model.gains import Gains
from depthkit.model.plan import Plan
from depthkit.model.registries import REGULATORS
from depthkit.model.regulators.base import Regulator
from depthkit.model.regulators.depth_functions import FORMS, STARTS, Depths, Start, turned
from depthkit.model.roles import Rule, assign, assign_rules

if TYPE_CHECKING:
    from typing_extensions import Self

    from depthkit.model.schema import ModelConfig

LARGEST_TURN = math.pi / 3
"""Bound on psi: larger angles turn gains through zero, which silences channels."""


@REGULATORS.register("layer_rope")
class LayerRoPE(Regulator):
    """One gain vector g for all norms, the final one included, and scalars for what depth reads and writes.

    Norms keep no gain of their own. What block l reads is multiplied by exp(alpha(l)) g and what it writes by
    exp(beta(l)), with alpha and beta separate for mixer and ffn; where branches are normalised on the way out
    (sandwich), g multiplies there too. The final norm is multiplied by exp(alpha_f) g. With `rotation` the
    pairs (2i, 2i+1) of g are turned by psi base^(-2i/dim) l/L inside the blocks, not at the final norm.

    The paper says that one shared vector and depth-conditioned scalars replace all norm gains, and that less
    is read and more written with depth; it gives no functional form. Basis, starts and rotation are ours.
    """

    equation = "read_l = exp(alpha_l) g, write_l = exp(beta_l) [g in sandwich], final = exp(alpha_f) g"
    source = "LayerRoPE (abstract: one shared gain vector with depth-conditioned scalars); form derived here"
    owns_norm_gains = True
    neutral = {"init": "neutral"}
    placements = ("pre", "sandwich")

    class Config(Regulator.Config):
        """Settings of `layer_rope`."""

        form: Literal["basis", "table", "fixed"] = "basis"
        """How alpha and beta are kept: learned coefficients of (1, l/L, ln l / ln L), which extend to another
        depth; one learned value a depth and branch; or fixed at their start, with only g learned."""
        init: Literal["damp_amplify", "neutral", "lns", "equal_angle"] = "damp_amplify"
        """Start: read l^(-1/2) and write l^(1/4); both 1 (Pre-Norm with tied gains); read l^(-1/2) alone; or
        read l^(-1/4) and writes that turn the stream by equal angles, counted over branches, which supposes a
        stream and branches of RMS 1 (sandwich with embed_norm: true)."""
        growth: float | None = Field(None, gt=1)
        """With `equal_angle`: how many times the stream grows in all; null means min(100, 1 + n/4)
        with n branches."""
        rotation: bool = False
        """Learn an angle psi by which g turns with depth, 0 at the start and at most pi/3."""
        rotation_base: float = Field(100.0, gt=0)
        """Base of the rotation's frequencies."""
        scalar_lr: float = Field(0.1, gt=0)
        """Learning rate of the learned scalars as a multiple of the model's; 0.01 to 0.1 suits `table`."""
        final: bool = True
        """Whether the final norm's gain is g too; always false for a regulator of one segment."""

        def num_parameters(self, plan: Plan, dim: int) -> int:
            """g and the scalars: dim + 13 in basis form."""
            scalars = 2 * FORMS[self.form].size(Depths.of(plan, self.index).distinct())
            return dim + scalars + (self.final and scalars > 0) + self.rotation

        def in_segment(self) -> Self:
            """The final norm lies outside every segment.

            Raises:
                ValueError: `final: true` was asked for.
            """
            if self.final and "final" in self.model_fields_set:
                raise ValueError("layer_rope: final must be false in a segment; the final norm is outside it")
            return self.model_copy(update={"final": False})

    def build(self, model: ModelConfig) -> None:
        """Make the parameters, and note in which segments branches are normalised on the way out."""
        config = self.config
        self.rows = Depths.of(config.acting(model), config.index).distinct()
        self.output_norms = {s.name for s in model.segments if model.placement_of(s).after_branch}
        shape = FORMS[config.form].shape(self.rows)
        self.g = nn.Parameter(torch.empty(self.dim))
        self.read, self.write = (_empty(shape) for _ in range(2))
        self.final = _empty((1,) if shape and config.final else None)
        self.psi = _empty((1,) if config.rotation else None)
        names = [name for name, _ in self.named_parameters()]
        assign(self, schedule=",".join(names))
        assign_rules(self, **{name: Rule(lr=config.scalar_lr) for name in names if name != "g"})

    def reset_parameters(self) -> None:
        """g is one, alpha and beta are at their start, the final scale and the angle are neutral."""
        nn.init.ones_(self.g)
        for parameter in (self.final, self.psi):
            if parameter is not None:
                nn.init.zeros_(parameter)
        fill, start = FORMS[self.config.form].fill, self._start(self.rows.total)
        with torch.no_grad():
            for parameter, coefficients in zip((self.read, self.write), start, strict=True):
                if parameter is not None:
                    parameter.copy_(fill(coefficients, self.rows))

    def gains(self, plan: Plan, step: Tensor | None, training: bool) -> Gains:
        """Reads [V, 2, D], writes [V, 2, 1] ([V, 2, D] where a segment has output norms), final [D]."""
        at = Depths.of(plan, self.config.index)
        vector = self._vector(at)
        read, write = self._scales(at)
        outputs = [visit.key.segment in self.output_norms for visit in plan.visits]
        if any(outputs):
            inside = torch.tensor(outputs, device=vector.device)[:, None, None]
            write = write * torch.where(inside, vector, torch.ones_like(vector))
        return Gains(read=read * vector, write=write, final=self._final())

    def _scales(self, at: Depths) -> list[Tensor]:
        """exp(alpha) and exp(beta), each [V, 2, 1]."""
        if self.read is None or self.write is None:
            kept = [coefficients.to(self.g.device) for coefficients in self._start(at.total)]
        else:
            kept = [self.read, self.write]
        value = FORMS[self.config.form].value
        return [value(parameter, self.rows, at).exp()[..., None] for parameter in kept]

    def _start(self, total: int) -> Start:
        return STARTS[self.config.init](total, self.config.growth)

    def _final(self) -> Tensor | None:
        if not self.config.final:
            return None
        return self.g if self.final is None else self.final.exp() * self.g

    def _vector(self, at: Depths) -> Tensor:
        """g at every visit, [V, 1, D], or [1, 1, D] without rotation."""
        if self.psi is None:
            return self.g.view(1, 1, -1)
        return turned(self.g, _bounded(self.psi), at.relative, self.config.rotation_base)[:, None]


def _empty(shape: tuple[int, ...] | None) -> nn.Parameter | None:
    return None if shape is None else nn.Parameter(torch.empty(shape))


def _bounded(psi: Tensor) -> Tensor:
    """psi within its bounds; the gradient passes, so that an angle at a bound can come back."""
    return psi + (psi.clamp(-LARGEST_TURN, LARGEST_TURN) - psi).detach()
