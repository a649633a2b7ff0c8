"""Root-mean-square normalisation."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from depthkit.model.gains import SiteGains
from depthkit.model.norms.base import Norm
from depthkit.model.registries import NORMS
from depthkit.model.roles import assign


@NORMS.register("rms")
class RMSNorm(Norm):
    """Root-mean-square normalisation with a learned gain; eps inside the root, statistics in fp32."""

    equation = "y = weight * x / sqrt(mean(x^2) + eps)"
    source = "arXiv:1910.07467"

    class Config(Norm.Config):
        """Settings of `rms`."""

        eps: float = Field(1e-6, gt=0)
        """Added to the mean square, inside the root."""

        def num_parameters(self, dim: int, gain: bool = True) -> int:
            """The gain."""
            return dim * gain

    def __init__(self, config: Any, dim: int, gain: bool = True, role: str = "final"):
        super().__init__(config, dim, gain, role)
        self.weight = nn.Parameter(torch.empty(dim)) if gain else None
        if gain:
            assign(self, norm="weight")

    def reset_parameters(self) -> None:
        """The gain is one."""
        if self.weight is not None:
            nn.init.ones_(self.weight)

    def forward(
        self, x: Tensor, stats: Any = None, role: str = "final", gains: SiteGains | None = None
    ) -> tuple[Tensor, Any]:
        """Normalise the last dimension."""
        weight = None if self.weight is None else self.weight.float()
        return F.rms_norm(x.float(), (self.dim,), weight, self.config.eps), stats
