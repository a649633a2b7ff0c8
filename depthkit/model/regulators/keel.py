"""Keel: a large constant on the carried stream of a block normalised before the branch and after the add."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from depthkit.model.gains import Gains, per_site
from depthkit.model.plan import Plan
from depthkit.model.registries import REGULATORS
from depthkit.model.regulators.base import Regulator


@REGULATORS.register("keel")
class Keel(Regulator):
    """Keel: the stream is multiplied by alpha, the number of branches, before the norm after the add."""

    equation = "x <- norm(alpha x + branch(norm(x))), alpha = 2L"
    source = "arXiv:2601.19895"
    neutral = {"alpha": 1.0}
    placements = ("huginn",)
    needs_norm = True

    class Config(Regulator.Config):
        """Settings of `keel`."""

        alpha: float | None = Field(None, gt=0)
        """Factor on the stream; null means the number of branches 2L; 1 is neutral. Implementations also use
        the number of blocks."""

    def gains(self, plan: Plan, step: Tensor | None, training: bool) -> Gains:
        """Skip gains alpha, the same for every branch."""
        alpha = self.config.alpha or 2.0 * plan.total(self.config.index)
        return Gains(skip=per_site([alpha] * plan.depth))
