"""What l and L count: blocks or branches."""

from __future__ import annotations

from typing import Literal

from depthkit.model.plan import Plan
from depthkit.model.regulators.base import Regulator


class CountingConfig(Regulator.Config):
    """Settings of a regulator whose formula is in l and L."""

    count: Literal["blocks", "branches"] = "blocks"
    """Whether l and L count blocks, so that both branches of a block share l, or branches: 2l-1 for the mixer
    and 2l for the feed-forward of block l, 2L in all."""

    def indices(self, plan: Plan) -> list[tuple[int, int]]:
        """The 1-based depth index of mixer and feed-forward at every visit."""
        blocks = plan.indices(self.index)
        return [(2 * l - 1, 2 * l) for l in blocks] if self.count == "branches" else [(l, l) for l in blocks]

    def total(self, plan: Plan) -> int:
        """The depth that goes with `indices`."""
        return plan.total(self.index) * (2 if self.count == "branches" else 1)
