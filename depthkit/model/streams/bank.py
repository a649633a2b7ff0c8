"""Parameters that a stream keeps for every branch of every visit."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from depthkit.model.gains import BRANCHES
from depthkit.model.plan import Plan
from depthkit.model.rows import Rows


class SiteBank(nn.Module):
    """Tables `[V, 2, ...]` (V visits; mixer, ffn), unbound for the visits; owned by `Schedules`.

    Args:
        plan: the visits there are parameters for.
    """

    def __init__(self, plan: Plan):
        super().__init__()
        self.plan = plan
        self.rows = Rows(plan)

    def tables(self) -> Any:
        """A named tuple of `[V, 2, ...]` tensors, None where the stream has no such parameter."""
        raise AssertionError("a bank implements tables")

    def forward(self, plan: Plan) -> list[tuple[Any, Any]]:
        """For every visit of `plan` the named tuple of its mixer and that of its ffn; a loop there are no
        parameters for has those of the last loop, with a warning."""
        tables = self.tables()
        columns = [_rows(table, self.plan.depth) for table in tables]
        rows = self.rows.of(plan)
        sites = [[type(tables)(*(c[v][b] for c in columns)) for b in range(2)] for v in rows]
        return [(mixer, ffn) for mixer, ffn in sites]

    def readout(self) -> Any:
        """What `close` gets: nothing, unless a bank says otherwise."""
        return None


def _rows(table: Tensor | None, depth: int) -> list[list[Any]]:
    if table is None:
        return [[None] * len(BRANCHES)] * depth
    return [list(row.unbind(0)) for row in table.unbind(0)]
