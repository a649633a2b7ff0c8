"""Looping residual: what earlier loops put out, carried into the next one.

Shapes: D width, R loops there can be. `outputs` are y_1 .. y_{t-1}, each `[..., D]`; the carry is normalised
to unit root mean square, so that it cannot grow from loop to loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from depthkit.model.loops.registries import CARRIES
from depthkit.model.roles import assign
from depthkit.registry import Spec

EPS = 1e-6


@CARRIES.register("none")
class NoCarry(nn.Module):
    """Nothing but the stream goes from loop to loop."""

    equation = "0"
    source = ""

    class Config(Spec):
        """Settings of `none`: none."""

        @property
        def acts(self) -> bool:
            """Whether anything is carried."""
            return False

        def num_parameters(self, loops: int) -> int:
            """Parameters, for at most `loops` loops."""
            return 0

    def __init__(self, config: Any, loops: int):
        super().__init__()

    def forward(self, h: Tensor, outputs: Sequence[Tensor], loop: int) -> Tensor:
        """The stream that loop `loop` (from 0, with `loop` outputs before it) starts from."""
        return h


class CarryConfig(Spec):
    """Settings of the kinds that carry."""

    start: float = 0.1
    """Initial strength c of every loop."""

    @property
    def acts(self) -> bool:
        """Whether anything is carried."""
        return True

    def num_parameters(self, loops: int) -> int:
        """One strength a loop after the first."""
        return max(loops - 1, 0)


class Carry(nn.Module):
    """x + c_t rms_norm(mix of the earlier outputs); a kind says how they are mixed."""

    source = "LOOM's looping residual; form derived here"
    Config = CarryConfig

    def __init__(self, config: Any, loops: int):
        super().__init__()
        self.config = config
        self.strength = nn.Parameter(torch.empty(max(loops - 1, 0)))
        assign(self, schedule="strength")

    def reset_parameters(self) -> None:
        """Every loop starts alike."""
        nn.init.constant_(self.strength, self.config.start)

    def mix(self, outputs: Sequence[Tensor]) -> Tensor:
        """One tensor `[..., D]` from the outputs of all earlier loops."""
        raise AssertionError("a carry implements mix")

    def forward(self, h: Tensor, outputs: Sequence[Tensor], loop: int) -> Tensor:
        """The stream that loop `loop` starts from; the first has nothing to carry."""
        if not outputs or not len(self.strength):
            return h
        last = min(loop, len(self.strength)) - 1
        carried = self.mix(outputs)
        return h + self.strength[last : last + 1] * F.rms_norm(carried, carried.shape[-1:], eps=EPS)


@CARRIES.register("mean")
class Mean(Carry):
    """The mean of all earlier outputs. (The last one alone would only rescale the stream.)"""

    equation = "h + c_t rms_norm(mean_{s<t} y_s)"

    class Config(CarryConfig):
        """Settings of `mean`."""

    def mix(self, outputs: Sequence[Tensor]) -> Tensor:
        """Their mean."""
        return torch.stack(list(outputs)).mean(0)


@CARRIES.register("ema")
class ExponentialAverage(Carry):
    """An exponential moving average of the earlier outputs."""

    equation = "h + c_t rms_norm(m_t), m_t = decay m_{t-1} + (1 - decay) y_{t-1}, m_2 = y_1"

    class Config(CarryConfig):
        """Settings of `ema`."""

        decay: float = Field(0.5, ge=0, lt=1)
        """Weight of what was carried before."""

    def mix(self, outputs: Sequence[Tensor]) -> Tensor:
        """Their moving average."""
        mean = outputs[0]
        for output in outputs[1:]:
            mean = self.config.decay * mean + (1 - self.config.decay) * output
        return mean


@CARRIES.register("learned")
class Learned(Carry):
    """A learned convex mix of the earlier outputs, one for every loop."""

    equation = "h + c_t rms_norm(sum_{s<t} softmax(A_t)_s y_s), A starting at 0"

    class Config(CarryConfig):
        """Settings of `learned`."""

        def num_parameters(self, loops: int) -> int:
            """A strength a loop after the first, and R(R-1)/2 mixing weights."""
            return max(loops - 1, 0) + loops * (loops - 1) // 2

    def __init__(self, config: Any, loops: int):
        super().__init__(config, loops)
        self.loops = loops
        self.logits = nn.Parameter(torch.empty(loops * (loops - 1) // 2))
        assign(self, schedule="strength,logits")

    def reset_parameters(self) -> None:
        """Equal weights."""
        super().reset_parameters()
        nn.init.zeros_(self.logits)

    def mix(self, outputs: Sequence[Tensor]) -> Tensor:
        """The mix of the loop that follows; past the trained loops, the last one over the latest outputs."""
        count = min(len(outputs), self.loops - 1)
        first = count * (count - 1) // 2
        weights = self.logits[first : first + count].softmax(0)
        return torch.tensordot(weights, torch.stack(list(outputs[-count:])).to(weights.dtype), dims=1)
