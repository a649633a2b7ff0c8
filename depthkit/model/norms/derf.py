"""Dynamic erf."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from depthkit.model.norms.dyt import DynamicTanh
from depthkit.model.registries import NORMS
from depthkit.model.roles import assign


@NORMS.register("derf")
class DynamicErf(DynamicTanh):
    """Dynamic erf: as dynamic tanh, with the error function and a learned shift of its argument.

    What is said there of the final norm and of the embedding's scale holds here too.
    """

    equation = "y = weight * erf(alpha * x + shift) + bias"
    source = "arXiv:2512.10938"

    class Config(DynamicTanh.Config):
        """Settings of `derf`."""

        alpha_mixer: float = Field(0.5, gt=0)
        """Steepness before mixers at the start."""
        alpha_other: float = Field(0.5, gt=0)
        """Steepness elsewhere at the start."""
        bias: bool = True
        """Learn a shift of the output."""

        def num_parameters(self, dim: int, gain: bool = True) -> int:
            """Steepness, shift of the argument, gain and shift of the output."""
            return 2 + dim * (gain + self.bias)

    def __init__(self, config: Any, dim: int, gain: bool = True, role: str = "final"):
        super().__init__(config, dim, gain, role)
        self.shift = nn.Parameter(torch.empty(1))
        biases = "shift,bias" if config.bias else "shift"
        assign(self, norm="alpha,weight" if gain else "alpha", bias=biases)

    def reset_parameters(self) -> None:
        """As dynamic tanh, and no shift of the argument."""
        super().reset_parameters()
        nn.init.zeros_(self.shift)

    def squash(self, x: Tensor) -> Tensor:
        """The bounded function."""
        return torch.erf(self.alpha * x + self.shift)
