"""No normalisation."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from depthkit.model.gains import SiteGains
from depthkit.model.norms.base import Norm
from depthkit.model.registries import NORMS


@NORMS.register("none")
class NoNorm(Norm):
    """The identity; also what stands at the sites a placement leaves empty."""

    equation = "y = x"
    source = "the identity"

    def forward(
        self, x: Tensor, stats: Any = None, role: str = "final", gains: SiteGains | None = None
    ) -> tuple[Tensor, Any]:
        """Return the input."""
        return x, stats
