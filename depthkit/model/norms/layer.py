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

        def num_parameters(self, dim: int) -> int:
            """Gain and shift."""
            return dim * (1 + self.bias)

    def __init__(self, config: Any, dim: int):
        super().__init__(config, dim)
        self.weight = nn.Parameter(torch.empty(dim))
        self.bias = nn.Parameter(torch.empty(dim)) if config.bias else None
        roles = {"norm": "weight", **({"bias": "bias"} if config.bias else {})}
        assign(self, **roles)

    def reset_parameters(self) -> None:
        """Gain one, shift zero."""
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self, x: Tensor, stats: Any = None, role: str = "final", gains: SiteGains | None = None
    ) -> tuple[Tensor, Any]:
        """Normalise the last dimension."""
        bias = None if self.bias is None else self.bias.float()
        return F.layer_norm(x.float(), (self.dim,), self.weight.float(), bias, self.config.eps), stats
