"""Manifold-constrained hyper-connections.

Shapes: V visits, 2 branches, n streams, D width, M = 2n + n^2 map entries in the order read, write, carry.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from depthkit.model.gains import BRANCHES
from depthkit.model.plan import Plan
from depthkit.model.registries import STREAMS
from depthkit.model.roles import assign
from depthkit.model.streams.bank import SiteBank
from depthkit.model.streams.parallel import Mixing, ParallelStreams, mean_square_inverse


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """H_res of `[..., n, n]` logits: exp, then `iterations` times (columns, rows) to sum one.

    In logarithms, where no sum can underflow; `eps` is not used.
    """
    for _ in range(iterations):
        logits = logits - logits.logsumexp(-2, keepdim=True)
        logits = logits - logits.logsumexp(-1, keepdim=True)
    return logits.exp()


def sinkhorn_deepseek_v4(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """The transpose of H_res, as the released module carries it.

    Softmax over rows plus eps, columns once, then `iterations` - 1 times (rows, columns), eps in every sum.
    """
    matrix = logits.softmax(-1) + eps
    matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        matrix = matrix / (matrix.sum(-1, keepdim=True) + eps)
        matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
    return matrix.mT


class Form(NamedTuple):
    """What the published forms differ in."""

    carry: Callable[[Tensor, int, float], Tensor]
    """Logits, iterations and eps -> what multiplies the streams."""
    guard: float
    """How many eps are added to the read weights."""


FORMS = {"paper": Form(sinkhorn, 0.0), "deepseek_v4": Form(sinkhorn_deepseek_v4, 1.0)}


class ManifoldMaps(NamedTuple):
    """Parameters of one branch."""

    weight: Tensor
    """`[M, n D]`."""
    bias: Tensor
    """`[M]`."""
    scale: Tensor
    """`[3]`: of read, write and carry."""


@STREAMS.register("mhc")
class ManifoldHyperConnections(ParallelStreams):
    """Manifold-constrained hyper-connections: n streams whose mixing is projected to doubly stochastic.

    `form: paper` follows equations 8 and 9 of the paper; `form: deepseek_v4` the module released with
    DeepSeek-V4, whose carry is the transpose. Both repeat at the start and sum at the end (the release reads
    out with a learned map instead). Maps are made in the precision of the stream, fp32. Initial values are
    derived here: all token-dependent maps zero, read weights that sum to one with a share `start` on stream
    v mod n of visit v, write weights one, and a carry that keeps `start` of each stream. This equals one
    stream up to the scale n of the sum and, unlike uniform weights, lets the streams come apart.
    """

    equation = (
        "branch input H_pre X; X <- skip * H_res X + H_post (write * y); H_pre = sigmoid(.), "
        "H_post = 2 sigmoid(.), H_res = sinkhorn(.), each of scale * W rms(vec X) + bias"
    )
    source = "arXiv:2512.24880 (form: paper); DeepSeek-V4 (form: deepseek_v4); initial values derived here"

    class Config(ParallelStreams.Config):
        """Settings of `mhc`."""

        streams: int = Field(4, ge=2)
        """Number of streams n."""
        form: Literal["paper", "deepseek_v4"] = "paper"
        """Order of the Sinkhorn steps, and whether the carry is H_res X or its transpose."""
        iterations: int = Field(20, ge=1)
        """Sinkhorn steps."""
        scale: float = Field(0.01, gt=0)
        """Initial scale of the token-dependent maps, whose weight starts at zero."""
        start: float = Field(0.75, gt=0, lt=1)
        """Initial share of the visit's stream in what its branches read, and of a stream in its own carry."""
        eps: float = Field(1e-6, gt=0)
        """Epsilon of the root mean square; `deepseek_v4` also adds it to read weights and in Sinkhorn."""

        @model_validator(mode="after")
        def _not_uniform(self) -> ManifoldHyperConnections.Config:
            if math.isclose(self.start * self.streams, 1.0):
                raise ValueError(
                    f"start: 1/streams ({self.start}) treats all streams alike, and they would stay alike"
                )
            return self

        def num_maps(self) -> int:
            """M."""
            return 2 * self.streams + self.streams**2

        def num_parameters(self, plan: Plan, dim: int) -> int:
            """Weight, bias and scales of every branch of every visit."""
            return len(BRANCHES) * plan.depth * (self.num_maps() * (self.streams * dim + 1) + 3)

        def map_flops(self, dim: int) -> int:
            """The product W vec(X)."""
            return 2 * self.num_maps() * self.streams * dim

    def bank(self, plan: Plan) -> nn.Module:
        """The maps of every branch."""
        return ManifoldBank(plan, self.config, self.dim)

    def mixing(self, state: Tensor, maps: ManifoldMaps) -> Mixing:
        """The three maps of every token."""
        config, form, n = self.config, FORMS[self.config.form], state.shape[-2]
        flat = state.flatten(-2)
        made = (flat * mean_square_inverse(flat, config.eps)) @ maps.weight.T
        sizes = [n, n, n * n]
        read, write, carry = (
            scale * part + bias
            for scale, part, bias in zip(
                maps.scale.unbind(0), made.split(sizes, -1), maps.bias.split(sizes), strict=True
            )
        )
        return Mixing(
            read.sigmoid() + form.guard * config.eps,
            form.carry(carry.unflatten(-1, (n, n)), config.iterations, config.eps),
            2 * write.sigmoid(),
        )


class ManifoldBank(SiteBank):
    """Maps by visit and branch, `[V, 2, ...]`; see `ManifoldMaps`."""

    def __init__(self, plan: Plan, config: Any, dim: int):
        super().__init__(plan)
        self.config = config
        sites = (plan.depth, len(BRANCHES))
        self.weight = nn.Parameter(torch.empty(*sites, config.num_maps(), config.streams * dim))
        self.bias = nn.Parameter(torch.empty(*sites, config.num_maps()))
        self.scale = nn.Parameter(torch.empty(*sites, 3))
        assign(self, schedule="weight,bias,scale")

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Equal to one stream; see the stream's docstring."""
        n, start = self.config.streams, self.config.start
        rest = (1 - start) / (n - 1)
        nn.init.zeros_(self.weight)
        nn.init.constant_(self.scale, self.config.scale)
        read, write, carry = self.bias.split([n, n, n * n], -1)
        index = torch.tensor([visit.index % n for visit in self.plan.visits], device=self.bias.device)
        own = nn.functional.one_hot(index, n).bool()[:, None]
        read.copy_(torch.where(own, math.log(start / (1 - start)), math.log(rest / (1 - rest))))
        write.zero_()
        carry.copy_(math.log(start / rest) * torch.eye(n, device=self.bias.device).flatten())

    def tables(self) -> ManifoldMaps:
        """All of them."""
        return ManifoldMaps(self.weight, self.bias, self.scale)
