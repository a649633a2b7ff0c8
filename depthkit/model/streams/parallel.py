"""What the streams with several parallel residuals share.

Shapes: B batch, T time, n streams, D width. The state is one tensor `[B, T, n, D]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from depthkit.model.gains import BRANCHES, SiteGains, scaled
from depthkit.model.plan import Plan
from depthkit.model.streams.single import SingleStream


class Mixing(NamedTuple):
    """How one branch couples to the streams, for all tokens or for every token (then with B, T in front)."""

    read: Tensor
    """`[..., n]`: the branch sees sum_i read_i X_i."""
    carry: Tensor
    """`[..., n, n]`: stream i carries on sum_j carry_ij X_j."""
    write: Tensor
    """`[..., n]`: stream i gets write_i y."""


class ParallelStreams(nn.Module):
    """n residual streams: opened by repeating, closed by summing; a kind says how branches couple to them."""

    sums = False

    class Config(SingleStream.Config):
        """Settings of every kind."""

        streams: int = Field(4, ge=1)
        """Number of streams n."""

        def flops(self, plan: Plan, dim: int) -> int:
            """Reading and carrying at every branch, and making the maps; a multiply-add is 2."""
            n = self.streams
            return len(BRANCHES) * plan.depth * (2 * (n + n * n) * dim + self.map_flops(dim))

        executed_flops = flops

        def map_flops(self, dim: int) -> int:
            """FLOPs of making one branch's maps for one token."""
            return 0

    def __init__(self, config: Any, dim: int):
        super().__init__()
        self.config = config
        self.dim = dim

    def mixing(self, state: Tensor, maps: Any) -> Mixing:
        """The coupling of the branch with parameters `maps` to the streams."""
        raise AssertionError("a kind of parallel streams implements mixing")

    def open(self, x: Tensor) -> Tensor:
        """Every stream starts as the embedding `[B, T, D]`."""
        return x[..., None, :].repeat(1, 1, self.config.streams, 1)

    def read(self, state: Tensor, site: int, maps: Any) -> tuple[Tensor, Mixing]:
        """What the branch sees `[B, T, D]`, before its norm, and its coupling."""
        with full_precision(state):
            mixing = self.mixing(state, maps)
            return (mixing.read[..., None, :] @ state).squeeze(-2), mixing

    def write(self, state: Tensor, y: Tensor, site: int, link: Mixing, gains: SiteGains, maps: Any) -> Tensor:
        """Carry the streams on and add the branch's output to each."""
        with full_precision(state):
            carried = link.carry @ state
        return scaled(gains.skip, carried) + link.write[..., None] * scaled(gains.write, y)[..., None, :]

    def map(self, state: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply `fn`, which acts on the last dimension, to every stream."""
        return fn(state)

    def close(self, state: Tensor, readout: None) -> Tensor:
        """The sum of the streams `[B, T, D]`."""
        return state.sum(-2)


def full_precision(x: Tensor) -> torch.autocast:
    """A context without autocast: the stream is mixed in the precision it is kept in."""
    return torch.autocast(x.device.type, enabled=False)


def mean_square_inverse(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) over the last dimension, which is kept."""
    return (x.square().mean(-1, keepdim=True) + eps).rsqrt()
