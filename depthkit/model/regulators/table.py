"""A learned gain for every site, found by key, so that it survives unrolling and other loop counts."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from depthkit.model.gains import BRANCHES
from depthkit.model.plan import Key, Plan
from depthkit.model.roles import assign


class Rows:
    """Which row of a learned table each visit uses: one a key, or one a stored layer (`stored`)."""

    def __init__(self, plan: Plan, indexing: str):
        self.stored = indexing == "stored"
        names = dict.fromkeys(self._name(visit.key) for visit in plan.visits)
        self._numbers = {name: number for number, name in enumerate(names)}

    def __len__(self) -> int:
        return len(self._numbers)

    def of(self, plan: Plan) -> list[int]:
        """The row of every visit; a loop the table does not know takes its last loop's, with a warning."""
        return [self._numbers[self._known(self._name(visit.key))] for visit in plan.visits]

    def _name(self, key: Key) -> Key:
        return key._replace(loop=0) if self.stored else key

    def _known(self, name: Key) -> Key:
        if name in self._numbers:
            return name
        last = max(known.loop for known in self._numbers if known._replace(loop=name.loop) == name)
        warnings.warn(f"loop {name.loop} of segment {name.segment!r} was never trained", stacklevel=2)
        return name._replace(loop=last)


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
