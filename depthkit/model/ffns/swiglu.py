"""SwiGLU feed-forward."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from depthkit.model.ffns.base import DenseConfig
from depthkit.model.linear import linear, together
from depthkit.model.registries import FFNS
from depthkit.model.roles import assign


@FFNS.register("swiglu")
class SwiGLU(nn.Module):
    """Gated feed-forward with SiLU, without biases."""

    equation = "down(silu(gate(h)) * up(h))"
    source = "arXiv:2002.05202"

    class Config(DenseConfig):
        """Settings of `swiglu`."""

        def matrices(self) -> int:
            """Gate, up and down."""
            return 3

    def __init__(self, config: Any, dim: int):
        super().__init__()
        hidden = config.hidden(dim)
        self.gate, self.up, self.down = linear(dim, hidden), linear(dim, hidden), linear(hidden, dim)
        assign(self, gate="gate.weight", up="up.weight", down="down.weight")

    def prepare(self, ids: Tensor, counted: Tensor | None) -> None:
        """Needs no context."""

    def forward(self, h: Tensor, ctx: None, bank: Any = None) -> tuple[Tensor, dict[str, Tensor]]:
        """`[B, T, D] -> ([B, T, D], {})`."""
        gate, up = together(h, self.gate, self.up)
        return self.down(F.silu(gate) * up), {}
