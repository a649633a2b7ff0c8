"""Bounded hyperbolic tangent, with one exact statistic a visit.

Shapes: B batch, T time, D width; S is the sequence length seen in training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from depthkit.model.gains import SiteGains
from depthkit.model.norms.base import Norm, precise
from depthkit.model.norms.write_estimate import WriteEstimate
from depthkit.model.registries import NORMS
from depthkit.model.roles import assign

if TYPE_CHECKING:
    from depthkit.model.schema import ModelConfig


class Stats(NamedTuple):
    """What the mixer's norm tells the feed-forward's, fp32."""

    carried: Tensor
    """`[B, T, 1]`: variance of the carried stream, skip^2 v1."""
    seen: Tensor
    """`[1]`: variance of what the mixer sees, times the power of its write gain; without gradient."""


@NORMS.register("bhyt")
class BoundedTanh(Norm):
    """Bounded hyperbolic tangent: tanh of the input over its root mean square, times lambda / kappa.

    By Chebyshev's inequality the argument is within lambda for all but 1/kappa^2 of the channels. Before the
    mixer the variance v1 is exact; before the feed-forward it is v1 and the estimated variance of what the
    mixer wrote: v2 = skip^2 v1 + (write read)^2 c lambda1^2 / kappa^2, the estimate taken without gradient.
    c = ||W_V W_O||_F^2 / (S D) supposes that attention averages S tokens evenly. It lives in a buffer that is
    refreshed every `refresh` forwards in training; S is kept too, so decoding does not change it.
    Gain vectors count by their mean square.

    Outside the blocks the norm is `rms` unless the config names another.
    """

    equation = "y = weight * tanh((lambda / kappa) x / sqrt(v + eps)); v = mean(x^2), or v2 before the ffn"
    source = "arXiv:2601.09719; gains in v2, and mode causal, derived here"
    placements = frozenset({"before_branch"})

    class Config(Norm.Config):
        """Settings of `bhyt`."""

        kappa: float = Field(10.0, gt=0)
        """How many standard deviations are mapped to lambda."""
        lambda_mixer: float = Field(2.0, gt=0)
        """lambda before mixers at the start; learned."""
        lambda_other: float = Field(2.0, gt=0)
        """lambda elsewhere at the start; learned. Outside blocks `bhyt` stands only where it is named."""
        variance: Literal["paper", "causal", "exact"] = "paper"
        """Variance before the feed-forward: estimated with 1/S, or with H_S/S, which is what causal attention
        averages to (H_S = 1 + 1/2 + ... + 1/S), or measured."""
        refresh: int = Field(100, ge=1)
        """Training forwards from one computation of c to the next."""
        eps: float = Field(1e-6, gt=0)
        """Added to the variance, inside the root."""

        def num_parameters(self, dim: int, gain: bool = True) -> int:
            """lambda and the gain."""
            return 1 + dim * gain

        def outside(self) -> Any:
            """Root-mean-square normalisation."""
            return NORMS.get("rms").Config(eps=self.eps)

        def conflict(self, model: ModelConfig) -> str | None:
            """The estimate needs a plain sum in the stream, and mixers whose write can be estimated."""
            if self.variance == "exact":
                return None
            mixers = {block.mixer.kind: block.mixer.component for block in model.blocks.values()}
            deaf = sorted(kind for kind, mixer in mixers.items() if not hasattr(mixer, "write_power"))
            if deaf:
                return f"variance {self.variance!r} cannot estimate what mixer {deaf[0]!r} writes; use exact"
            if not getattr(model.stream.component, "sums", False):
                return (
                    f"variance {self.variance!r} supposes x <- skip * x + write * y, which stream "
                    f"{model.stream.kind!r} is not; use exact"
                )
            return None

    def __init__(self, config: Any, dim: int, gain: bool = True, role: str = "final"):
        super().__init__(config, dim, gain, role)
        self.start = config.lambda_mixer if role == "mixer" else config.lambda_other
        self.bound = nn.Parameter(torch.empty(1))
        self.weight = nn.Parameter(torch.empty(dim)) if gain else None
        assign(self, norm="bound,weight" if gain else "bound")
        self.estimate = WriteEstimate(config, dim) if role == "ffn" and config.variance != "exact" else None
        self.uses_gains = self.estimate is not None

    def reset_parameters(self) -> None:
        """lambda as configured, gain one."""
        nn.init.constant_(self.bound, self.start)
        if self.weight is not None:
            nn.init.ones_(self.weight)

    def look(self, mixer: nn.Module, ids: Tensor) -> None:
        """Refresh c if it is due."""
        if self.estimate is not None:
            self.estimate.look(mixer, ids)

    def forward(
        self, x: Tensor, stats: Any = None, role: str = "final", gains: SiteGains | None = None
    ) -> tuple[Tensor, Any]:
        """Bound the channels of `x`; `stats` goes from the mixer's norm to the feed-forward's."""
        x = precise(x)
        if self.estimate is None or stats is None:
            variance = x.square().mean(-1, keepdim=True)
        else:
            variance = stats.carried + self.estimate.c * stats.seen
        slope = self.bound / self.config.kappa
        y = torch.tanh(slope * (x * (variance + self.config.eps).rsqrt()))
        y = y if self.weight is None else self.weight * y
        if role != "mixer":
            return y, stats
        read, write, skip = (_power(gain) for gain in gains or SiteGains())
        return y, Stats(skip * variance, (read * write * slope.square()).detach())


def _power(gain: Tensor | None) -> Tensor | float:
    """Mean square of a gain; 1 where there is none."""
    return 1.0 if gain is None else gain.square().mean()
