"""The original two-matrix feed-forward, with GELU."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from depthkit.model.ffns.base import DenseConfig
from depthkit.model.linear import linear
from depthkit.model.registries import FFNS
from depthkit.model.roles import assign


@FFNS.register("gelu")
class GELU(nn.Module):
    """Feed-forward with the exact (erf) GELU, without biases."""

    equation = "down(gelu(up(h)))"
    source = "arXiv:1606.08415"

    Config = DenseConfig

    def __init__(self, config: Any, dim: int):
        super().__init__()
        hidden = config.hidden(dim)
        self.up, self.down = linear(dim, hidden), linear(hidden, dim)
        assign(self, up="up.weight", down="down.weight")

    def prepare(self, ids: Tensor, counted: Tensor | None) -> None:
        """Needs no context."""

    def forward(self, h: Tensor, ctx: None, bank: Any = None) -> tuple[Tensor, dict[str, Tensor]]:
        """`[B, T, D] -> ([B, T, D], {})`."""
        return self.down(F.gelu(self.up(h))), {}
