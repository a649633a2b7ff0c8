"""How the input of a looped segment is put in again at every loop.

Shapes: B batch, T time, D width, R loops there can be. `h` is the carried stream, `e` what the segment was
given; both `[..., D]`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from depthkit.model.linear import linear
from depthkit.model.loops.registries import INJECTS
from depthkit.model.roles import Rule, assign, assign_rules
from depthkit.registry import Spec


@INJECTS.register("none")
class NoInjection(nn.Module):
    """The input is seen by the first loop only."""

    equation = "h"
    source = "arXiv:1807.03819"
    from_start: ClassVar[bool] = True
    """Whether it acts at the first loop also where the state starts as the input itself."""

    class Config(Spec):
        """Settings every injection has: none."""

        @property
        def acts(self) -> bool:
            """Whether anything is injected."""
            return self.kind != "none"  # type: ignore[attr-defined]

        def num_parameters(self, dim: int, loops: int) -> int:
            """Parameters, for at most `loops` loops."""
            return 0

        def flops(self, dim: int) -> int:
            """Forward FLOPs of a token in matrix products, per loop."""
            return 0

    def __init__(self, config: Any, dim: int, loops: int, nominal: int):
        super().__init__()
        self.config = config

    def forward(self, h: Tensor, e: Tensor, loop: int) -> Tensor:
        """The stream that the loop starts from."""
        return h


class LambdaConfig(NoInjection.Config):
    """Settings of the kinds with one strength a loop."""

    start: float | None = None
    """Initial strength lambda; null is 1/R at the nominal loop count R."""

    def num_parameters(self, dim: int, loops: int) -> int:
        """One lambda a loop."""
        return loops


class Weighted(nn.Module):
    """One learned strength lambda a loop, the last one serving for loops beyond."""

    from_start: ClassVar[bool] = False
    Config = LambdaConfig

    def __init__(self, config: Any, dim: int, loops: int, nominal: int):
        super().__init__()
        self.start = config.start if config.start is not None else 1.0 / nominal
        self.strength = nn.Parameter(torch.empty(loops))
        assign(self, schedule="strength")

    def reset_parameters(self) -> None:
        """Every loop starts alike."""
        nn.init.constant_(self.strength, self.start)

    def at(self, loop: int) -> Tensor:
        """Lambda of a loop, `[1]`."""
        last = min(loop, len(self.strength) - 1)
        return self.strength[last : last + 1]


@INJECTS.register("add")
class Add(Weighted):
    """The input is added at every loop."""

    equation = "h + lambda_t e"
    source = "arXiv:2502.05171 (a choice of its code)"

    class Config(LambdaConfig):
        """Settings of `add`."""

    def forward(self, h: Tensor, e: Tensor, loop: int) -> Tensor:
        """See the equation."""
        return h + self.at(loop) * e


@INJECTS.register("convex")
class Convex(Weighted):
    """A weighted mean of stream and input, which cannot outgrow either."""

    equation = "(h + lambda_t e) / (1 + lambda_t)"
    source = "LOOM's re-injected embedding; form derived here"

    class Config(LambdaConfig):
        """Settings of `convex`."""

    def forward(self, h: Tensor, e: Tensor, loop: int) -> Tensor:
        """See the equation."""
        strength = self.at(loop)
        return (h + strength * e) / (1 + strength)


@INJECTS.register("linear")
class Linear(nn.Module):
    """A learned map of stream and input together, the same at every loop; Huginn's adapter."""

    equation = "W [h; e]; with identity: h + W [h; e], W starting at 0"
    source = "arXiv:2502.05171"
    from_start: ClassVar[bool] = True

    class Config(NoInjection.Config):
        """Settings of `linear`."""

        identity: bool = False
        """Start as the identity on the stream instead of at random."""

        def num_parameters(self, dim: int, loops: int) -> int:
            """W."""
            return 2 * dim * dim

        def flops(self, dim: int) -> int:
            """One product with W."""
            return 4 * dim * dim

    def __init__(self, config: Any, dim: int, loops: int, nominal: int):
        super().__init__()
        self.identity = config.identity
        self.adapter = linear(2 * dim, dim)
        assign(self, adapter="adapter.weight")
        assign_rules(self, **{"adapter.weight": Rule(init=0.0 if config.identity else 1.0)})

    def forward(self, h: Tensor, e: Tensor, loop: int) -> Tensor:
        """See the equation."""
        mixed = self.adapter(torch.cat([h, e.expand_as(h)], dim=-1)).to(h.dtype)
        return h + mixed if self.identity else mixed


@INJECTS.register("gate")
class Gate(nn.Module):
    """A learned share of the input a loop."""

    equation = "s h + (1 - s) e, s = sigmoid(w_t)"
    source = "form derived here"
    from_start: ClassVar[bool] = False

    class Config(NoInjection.Config):
        """Settings of `gate`."""

        start: float = 2.0
        """Initial w; at 2 the stream keeps a share of 0.88."""

        def num_parameters(self, dim: int, loops: int) -> int:
            """One w a loop."""
            return loops

    def __init__(self, config: Any, dim: int, loops: int, nominal: int):
        super().__init__()
        self.start = config.start
        self.gate = nn.Parameter(torch.empty(loops))
        assign(self, schedule="gate")

    def reset_parameters(self) -> None:
        """Every loop starts alike."""
        nn.init.constant_(self.gate, self.start)

    def forward(self, h: Tensor, e: Tensor, loop: int) -> Tensor:
        """See the equation."""
        last = min(loop, len(self.gate) - 1)
        share = self.gate[last : last + 1].sigmoid()
        return share * h + (1 - share) * e
