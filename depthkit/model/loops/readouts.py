"""What a looped segment hands on.

Shapes: D width, R loops there can be; `outputs` are y_1 .. y_R, each `[..., D]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from depthkit.model.loops.registries import READOUTS
from depthkit.model.roles import assign
from depthkit.registry import Spec


@READOUTS.register("last")
class Last(nn.Module):
    """The output of the last loop."""

    equation = "y_R"
    source = "arXiv:1807.03819"
    keeps_state: ClassVar[bool] = True
    """Whether the carried state goes on as it is, instead of being opened anew."""

    class Config(Spec):
        """Settings of `last`: none."""

        def num_parameters(self, loops: int) -> int:
            """Parameters, for at most `loops` loops."""
            return 0

    def __init__(self, config: Any, loops: int):
        super().__init__()

    def forward(self, outputs: Sequence[Tensor]) -> Tensor:
        """`[..., D]`."""
        return outputs[-1]


@READOUTS.register("weighted")
class WeightedReadout(nn.Module):
    """A learned convex mix of all loops' outputs that starts close to the last."""

    equation = "sum_t softmax(a + bias [t = R])_t y_t, a starting at 0"
    source = "LOOM's read-out; form derived here"
    keeps_state: ClassVar[bool] = False

    class Config(Spec):
        """Settings of `weighted`."""

        bias: float = 4.0
        """Head start of the last loop that is run."""

        def num_parameters(self, loops: int) -> int:
            """One weight a loop."""
            return loops

    def __init__(self, config: Any, loops: int):
        super().__init__()
        self.bias = config.bias
        self.logits = nn.Parameter(torch.empty(loops))
        assign(self, schedule="logits")

    def reset_parameters(self) -> None:
        """Equal weights but for the bias."""
        nn.init.zeros_(self.logits)

    def forward(self, outputs: Sequence[Tensor]) -> Tensor:
        """Loops past the trained ones share the last one's weight."""
        count = len(outputs)
        rows = [min(loop, len(self.logits) - 1) for loop in range(count)]
        last = torch.zeros(count, device=self.logits.device, dtype=self.logits.dtype)
        last[-1] = self.bias
        weights = (self.logits[rows] + last).softmax(0)
        return torch.tensordot(weights, torch.stack(list(outputs)).to(weights.dtype), dims=1)
