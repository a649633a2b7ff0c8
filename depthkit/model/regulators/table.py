"""A learned gain for every site, found by key, so that it survives unrolling and other loop counts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from depthkit.model.gains import BRANCHES
from depthkit.model.plan import Plan
from depthkit.model.roles import assign
from depthkit.model.rows import Rows


class Table(nn.Module):
    """`gain [rows, 2, width]`, learned; its owner fills it in `reset_parameters`.

    Args:
        plan: the visits it is for.
        indexing: `stored` for one row a stored layer, otherwise one row a visit.
        width: 1 for a scalar a site, D for a vector a site.
    """

    def __init__(self, plan: Plan, indexing: str, width: int):
        super().__init__()
        self.rows = Rows(plan, indexing)
        self.gain = nn.Parameter(torch.empty(len(self.rows), len(BRANCHES), width))
        assign(self, schedule="gain")

    @staticmethod
    def num_parameters(plan: Plan, indexing: str, width: int) -> int:
        """Size of the table."""
        return len(Rows(plan, indexing)) * len(BRANCHES) * width

    @torch.no_grad()
    def fill(self, plan: Plan, gains: Tensor) -> None:
        """Start at `gains [V, 2, 1 or width]` of the visits of `plan`."""
        self.gain[self.rows.of(plan)] = gains.to(self.gain).expand(-1, -1, self.gain.shape[-1])

    def forward(self, plan: Plan) -> Tensor:
        """The gain of every visit, `[V, 2, width]`, fp32."""
        return self.gain[self.rows.of(plan)].float()
