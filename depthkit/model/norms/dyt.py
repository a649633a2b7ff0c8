"""Dynamic tanh."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from depthkit.model.gains import SiteGains
from depthkit.model.norms.base import Norm, precise
from depthkit.model.registries import NORMS
from depthkit.model.roles import assign


@NORMS.register("dyt")
class DynamicTanh(Norm):
    """Dynamic tanh: no statistics, a bounded function of every channel with one learned steepness.

    It replaces the final norm too, unless `final_norm` says otherwise. Nothing is normalised, so the scale of
    the stream is that of the embedding, and logits start as small as it is: the published LLaMA multiplies
    the embedding by a learned scalar that starts at sqrt(dim). Here `embedding_std: 1.0` does that; with the
    default 0.02 the first steps only learn to grow, unless the final norm is `rms`.
    """

    equation = "y = weight * tanh(alpha * x) + bias"
    source = "arXiv:2503.10622"

    class Config(Norm.Config):
        """Settings of `dyt`."""

        alpha_mixer: float = Field(0.5, gt=0)
        """Steepness before mixers at the start; the published LLaMA has 0.8 at 7B, 0.6 at 13B, 0.2 above."""
        alpha_other: float = Field(0.5, gt=0)
        """Steepness elsewhere at the start; the published LLaMA has 0.2 at 7B, 0.15 at 13B, 0.05 above."""
        bias: bool = False
        """Learn a shift of the output; the published LLaMA has none, the vision models do."""

        def num_parameters(self, dim: int, gain: bool = True) -> int:
            """Steepness, gain and shift."""
            return 1 + dim * (gain + self.bias)

    def __init__(self, config: Any, dim: int, gain: bool = True, role: str = "final"):
        super().__init__(config, dim, gain, role)
        self.start = config.alpha_mixer if role == "mixer" else config.alpha_other
        self.alpha = nn.Parameter(torch.empty(1))
        self.weight = nn.Parameter(torch.empty(dim)) if gain else None
        self.bias = nn.Parameter(torch.empty(dim)) if config.bias else None
        norms = "alpha,weight" if gain else "alpha"
        assign(self, norm=norms, **({"bias": "bias"} if config.bias else {}))

    def reset_parameters(self) -> None:
        """Steepness as configured, gain one, shift zero."""
        nn.init.constant_(self.alpha, self.start)
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def squash(self, x: Tensor) -> Tensor:
        """The bounded function."""
        return torch.tanh(self.alpha * x)

    def forward(
        self, x: Tensor, stats: Any = None, role: str = "final", gains: SiteGains | None = None
    ) -> tuple[Tensor, Any]:
        """Squash every channel."""
        y = self.squash(precise(x))
        y = y if self.weight is None else self.weight * y
        return (y if self.bias is None else y + self.bias), stats
