"""The residual stream with the embedding mixed in again before every block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from depthkit.model.gains import SiteGains, scaled
from depthkit.model.plan import Plan
from depthkit.model.registries import STREAMS
from depthkit.model.roles import Rule, assign, assign_rules
from depthkit.model.rows import Rows
from depthkit.model.streams.single import SingleStream


class Carried(NamedTuple):
    """The residual `x` and the embedding `x0`, both `[B, T, D]`."""

    x: Tensor
    x0: Tensor


class Mix(NamedTuple):
    """lambda and mu of one visit, `[1]` each."""

    carry: Tensor
    inject: Tensor


@STREAMS.register("embedding_skip")
class EmbeddingSkip(nn.Module):
    """One residual stream into which every block first mixes the embedding; starts equal to `single`."""

    equation = "x <- lambda_v x + mu_v x_0 once before block v; then x <- skip * x + write * y"
    source = "nanochat (Karpathy 2025); lambda starts at 1 and mu at 0 here, which is neutral"
    sums = True

    class Config(SingleStream.Config):
        """Settings of `embedding_skip`."""

        normalise: bool = False
        """Mix in the embedding divided by its root mean square instead of the embedding itself."""
        eps: float = Field(1e-6, gt=0)
        """Added to the mean square with `normalise`."""
        carry_lr: float = Field(0.01, ge=0)
        """Learning-rate multiplier of lambda: it multiplies up over depth, so it moves slowly."""

        def num_parameters(self, plan: Plan, dim: int) -> int:
            """lambda and mu of every visit."""
            return 2 * plan.depth

    def __init__(self, config: Any, dim: int):
        super().__init__()
        self.config = config

    def bank(self, plan: Plan) -> nn.Module:
        """lambda and mu."""
        return EmbeddingSkipBank(plan, self.config.carry_lr)

    def open(self, x: Tensor) -> Carried:
        """State from the embedding `[B, T, D]`; the copy keeps the two tensors apart."""
        x0 = F.rms_norm(x, x.shape[-1:], eps=self.config.eps) if self.config.normalise else x.clone()
        return Carried(x, x0)

    def read(self, state: Carried, site: int, maps: Mix | None) -> tuple[Tensor, Tensor]:
        """What the branch sees, and the same again as what is carried past it."""
        x = state.x if maps is None else maps.carry * state.x + maps.inject * state.x0
        return x, x

    def write(
        self, state: Carried, y: Tensor, site: int, link: Tensor, gains: SiteGains, maps: Mix | None
    ) -> Carried:
        """Add a branch's output to what was carried past it."""
        return Carried(scaled(gains.skip, link) + scaled(gains.write, y), state.x0)

    def map(self, state: Carried, fn: Callable[[Tensor], Tensor]) -> Carried:
        """Apply `fn` to the residual; the embedding stays."""
        return Carried(fn(state.x), state.x0)

    def close(self, state: Carried, readout: None) -> Tensor:
        """The residual `[B, T, D]`."""
        return state.x


class EmbeddingSkipBank(nn.Module):
    """lambda (`carry`) and mu (`inject`) by visit, `[V, 1]`."""

    def __init__(self, plan: Plan, carry_lr: float):
        super().__init__()
        self.rows = Rows(plan)
        self.carry = nn.Parameter(torch.empty(plan.depth, 1))
        self.inject = nn.Parameter(torch.empty(plan.depth, 1))
        assign(self, schedule="carry,inject")
        assign_rules(self, carry=Rule(lr=carry_lr))

    def reset_parameters(self) -> None:
        """Neutral: lambda one, mu zero."""
        nn.init.ones_(self.carry)
        nn.init.zeros_(self.inject)

    def forward(self, plan: Plan) -> list[tuple[Mix, None]]:
        """The mix stands before the mixer only, hence once a block."""
        pairs = list(zip(self.carry.unbind(0), self.inject.unbind(0), strict=True))
        return [(Mix(*pairs[row]), None) for row in self.rows.of(plan)]

    def readout(self) -> None:
        """Nothing."""
