"""Hyper-Connections.

Shapes: V visits, 2 branches, n streams, D width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from depthkit.model.gains import BRANCHES
from depthkit.model.plan import Plan
from depthkit.model.registries import STREAMS
from depthkit.model.roles import assign
from depthkit.model.streams.bank import SiteBank
from depthkit.model.streams.parallel import Mixing, ParallelStreams, mean_square_inverse


class HyperMaps(NamedTuple):
    """Parameters of one branch: static maps, and (None without) the dynamic ones."""

    read: Tensor
    """A_m, `[n]`."""
    carry: Tensor
    """A_r, `[n, n]`."""
    write: Tensor
    """B, `[n]`."""
    weight: Tensor | None
    """`[D, n + 2]`: W of A_m (1 column), of A_r (n columns) and of B (1 column)."""
    scale: Tensor | None
    """`[2]`: s of both A, and of B."""


@STREAMS.register("hyper")
class HyperConnections(ParallelStreams):
    """Hyper-Connections: n streams that branches read from, write to and mix with learned maps.

    At the start every branch of visit v reads stream v mod n, nothing is mixed and every stream gets every
    output, which equals one stream up to the scale n of the sum; a final norm takes that out. The norm inside
    the dynamic maps is a root mean square without a gain, which the map's own weight could absorb. None of
    the maps takes weight decay, which is known to end in NaN after long runs.
    """

    equation = (
        "branch input A_m^T X; X <- skip * A_r^T X + B (write * y); "
        "A_m, A_r, B = static + s * tanh(norm(X) W)"
    )
    source = "arXiv:2409.19606"

    class Config(ParallelStreams.Config):
        """Settings of `hyper`."""

        dynamic: bool = True
        """Add maps that depend on the token; false is the paper's static form."""
        dynamic_scale: float = Field(0.01, gt=0)
        """Initial s of the dynamic maps, whose W starts at zero."""
        eps: float = Field(1e-6, gt=0)
        """Epsilon of the norm in the dynamic maps."""

        def num_parameters(self, plan: Plan, dim: int) -> int:
            """Static and dynamic maps of every branch of every visit."""
            n = self.streams
            return len(BRANCHES) * plan.depth * (n * n + 2 * n + self.dynamic * (dim * (n + 2) + 2))

        def map_flops(self, dim: int) -> int:
            """The product norm(X) W."""
            return self.dynamic * 2 * self.streams * dim * (self.streams + 2)

    def bank(self, plan: Plan) -> nn.Module:
        """The maps of every branch."""
        return HyperBank(plan, self.config, self.dim)

    def mixing(self, state: Tensor, maps: HyperMaps) -> Mixing:
        """Static maps plus, where there are any, the dynamic ones."""
        if maps.weight is None or maps.scale is None:
            return Mixing(maps.read, maps.carry.mT, maps.write)
        n = state.shape[-2]
        normed = state * mean_square_inverse(state, self.config.eps)
        read, carry, write = (normed @ maps.weight).tanh().split([1, n, 1], dim=-1)
        to_a, to_b = maps.scale.unbind(0)
        return Mixing(
            read.squeeze(-1) * to_a + maps.read,
            (carry * to_a + maps.carry).mT,
            write.squeeze(-1) * to_b + maps.write,
        )


class HyperBank(SiteBank):
    """Maps by visit and branch, `[V, 2, ...]`; see `HyperMaps`."""

    def __init__(self, plan: Plan, config: Any, dim: int):
        super().__init__(plan)
        self.config = config
        n, sites = config.streams, (plan.depth, len(BRANCHES))
        self.read = nn.Parameter(torch.empty(*sites, n))
        self.carry = nn.Parameter(torch.empty(*sites, n, n))
        self.write = nn.Parameter(torch.empty(*sites, n))
        self.weight = nn.Parameter(torch.empty(*sites, dim, n + 2)) if config.dynamic else None
        self.scale = nn.Parameter(torch.empty(*sites, 2)) if config.dynamic else None
        assign(self, schedule="read,carry,write" + (",weight,scale" if config.dynamic else ""))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Equal to one stream: read stream v mod n, mix nothing, write everywhere, dynamic maps zero."""
        n = self.config.streams
        index = torch.tensor([visit.index % n for visit in self.plan.visits], device=self.read.device)
        self.read.copy_(nn.functional.one_hot(index, n)[:, None])
        self.carry.copy_(torch.eye(n, device=self.carry.device))
        nn.init.ones_(self.write)
        if self.weight is not None and self.scale is not None:
            nn.init.zeros_(self.weight)
            nn.init.constant_(self.scale, self.config.dynamic_scale)

    def tables(self) -> HyperMaps:
        """All of them."""
        return HyperMaps(self.read, self.carry, self.write, self.weight, self.scale)
