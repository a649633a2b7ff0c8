"""Layer normalisation."""

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


@NORMS.register("layer")
class LayerNorm(Norm):
    """Layer normalisation with a learned gain and, unless `bias: false`, a learned shift; fp32 statistics."""

    equation = "y = weight * (x - mean(x)) / sqrt(var(x) + eps) + bias"
    source = "arXiv:1607.06450"

    class Config(Norm.Config):
        """Settings of `layer`."""

        eps: float = Field(1e-6, gt=0)
        """Added to the variance, inside the root."""
        bias: bool = True
        """Learn a shift."""

        def num_parameters(self, dim: int, gain: bool = True) -> int:
            """Gain and shift."""
            return dim * (gain + self.bias)

    def __init__(self, config: Any, dim: int, gain: bool = True, role: str = "final"):
        super().__init__(config, dim, gain, role)
        self.weight = nn.Parameter(torch.empty(dim)) if gain else None
        self.bias = nn.Parameter(torch.empty(dim)) if config.bias else None
        assign(self, **({"norm": "weight"} if gain else {}), **({"bias": "bias"} if config.bias else {}))

    def reset_parameters(self) -> None:
        """Gain one, shift zero."""
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self, x: Tensor, stats: Any = None, role: str = "final", gains: SiteGains | None = None
    ) -> tuple[Tensor, Any]:
        """Normalise the last dimension."""
        weight, bias = (None if p is None else p.float() for p in (self.weight, self.bias))
        return F.layer_norm(x.float(), (self.dim,), weight, bias, self.config.eps), stats
