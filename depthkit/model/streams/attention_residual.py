"""Attention over depth in place of the sum of the residual stream.

Shapes: B batch, T time, D width, V visits, S slots that hold what branches have written.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from depthkit.model.gains import BRANCHES, SiteGains, scaled
from depthkit.model.plan import Plan
from depthkit.model.registries import STREAMS
from depthkit.model.roles import assign
from depthkit.model.streams.bank import SiteBank
from depthkit.model.streams.parallel import full_precision, mean_square_inverse
from depthkit.model.streams.single import SingleStream


class Values(NamedTuple):
    """What has been written so far."""

    values: Tensor
    """`[B, T, S, D]`: the embedding, then outputs or group sums; zero where nothing has been written yet."""
    filled: Tensor
    """`[B, S]`: one where something has been written, else zero."""


class Query(NamedTuple):
    """Parameters of one branch, and where it writes."""

    query: Tensor
    """w, `[D]`."""
    gain: Tensor
    """Gain of the key norm, `[D]`."""
    slot: Tensor | None
    """One-hot `[S]`; None for the read-out, which does not write."""


@STREAMS.register("attention_residual")
class AttentionResidual(nn.Module):
    """Attention residuals: every branch reads a softmax over what came before it, by a learned query.

    At the start all queries are zero and a branch reads the plain average. `form: full` attends over the
    embedding and every earlier output; `form: block` sums outputs inside groups of visits and attends over
    the embedding, the groups and the running sum. There is no neutral setting.

    The state holds all S slots from the start and writes into them by one-hot, because a state that grows
    would compile a graph a visit. `full` therefore has 2V + 1 slots, and training keeps a copy of them for
    every branch: memory grows with the square of depth, with `block` only in proportion.
    """

    equation = (
        "branch input sum_i a_i v_i, a = softmax_i(w . rms(v_i) gain); v_0 the embedding, "
        "v_i <- skip * v_i before every write, v_new = write * y (added to its group's sum with form: block)"
    )
    source = "Attention Residuals (Moonshot AI, March 2026)"
    sums = False

    class Config(SingleStream.Config):
        """Settings of `attention_residual`."""

        form: Literal["block", "full"] = "block"
        """Attend over groups of visits, or over every output."""
        groups: int = Field(8, ge=1)
        """Number of groups with `form: block`, at most one a visit; equally long, or as nearly as it goes."""
        eps: float = Field(1e-6, gt=0)
        """Epsilon of the key norm."""

        def conflict(self, model: Any) -> str | None:
            """There is no sum that a norm could follow, or that a loop could inject into."""
            for segment in model.segments:
                if segment.recurs:
                    return (
                        f"attention_residual has no sum that segment {segment.name!r} could inject into, "
                        "carry or read out; loop it plainly, or use another stream"
                    )
                if model.placement_of(segment).after_add:
                    return (
                        f"attention_residual has no sum to normalise, but the placement of segment "
                        f"{segment.name!r} has a norm after the add"
                    )
            return None

        def slots(self, plan: Plan) -> list[tuple[int, int]]:
            """The slots that mixer and ffn of every visit write to; the embedding has slot 0."""
            if self.form == "full":
                return [(1 + 2 * v, 2 + 2 * v) for v in range(plan.depth)]
            groups = min(self.groups, plan.depth)
            return [(1 + v * groups // plan.depth,) * 2 for v in range(plan.depth)]

        def num_slots(self, plan: Plan) -> int:
            """S."""
            return 1 + self.slots(plan)[-1][-1]

        def num_parameters(self, plan: Plan, dim: int) -> int:
            """A query and a key gain for every branch of every visit, and for the read-out."""
            return (len(BRANCHES) * plan.depth + 1) * 2 * dim

        def flops(self, plan: Plan, dim: int) -> int:
            """Scores and average over the slots that hold something; a multiply-add is 2."""
            written = [0, *chain.from_iterable(self.slots(plan))]
            return 4 * dim * sum(1 + slot for slot in written)

        def executed_flops(self, plan: Plan, dim: int) -> int:
            """Scores and average over all slots."""
            return 4 * dim * self.num_slots(plan) * (len(BRANCHES) * plan.depth + 1)

    def __init__(self, config: Any, dim: int):
        super().__init__()
        self.config = config
        self.dim = dim
        self.slots = 0

    def bank(self, plan: Plan) -> nn.Module:
        """The queries; their plan also says how many slots a state has."""
        self.slots = self.config.num_slots(plan)
        return QueryBank(plan, self.config, self.dim)

    def open(self, x: Tensor) -> Values:
        """The embedding `[B, T, D]` in the first of S slots."""
        values = nn.functional.pad(x[..., None, :], (0, 0, 0, self.slots - 1))
        filled = nn.functional.pad(x.new_ones(len(x), 1), (0, self.slots - 1))
        return Values(values, filled)

    def read(self, state: Values, site: int, maps: Query) -> tuple[Tensor, None]:
        """The average of what has been written, by the branch's query."""
        return self._attend(state, maps), None

    def write(self, state: Values, y: Tensor, site: int, link: None, gains: SiteGains, maps: Query) -> Values:
        """Put a branch's output into its slot; a skip gain multiplies all that was written before."""
        assert maps.slot is not None
        new = maps.slot[:, None] * scaled(gains.write, y)[..., None, :]
        return Values(scaled(gains.skip, state.values) + new, torch.maximum(state.filled, maps.slot))

    def map(self, state: Values, fn: Callable[[Tensor], Tensor]) -> Values:
        """Apply `fn`, which acts on the last dimension, to every slot."""
        return Values(fn(state.values), state.filled)

    def close(self, state: Values, readout: Query) -> Tensor:
        """The average of what has been written, by the read-out's query."""
        return self._attend(state, readout)

    def _attend(self, state: Values, maps: Query) -> Tensor:
        with full_precision(state.values):
            # The norm of a key is a factor on its score: no normalised copy of the slots is made.
            scores = state.values @ (maps.query * maps.gain)[:, None]
            scores = (scores * mean_square_inverse(state.values, self.config.eps)).squeeze(-1)
            weights = scores.masked_fill(state.filled[:, None] == 0, -torch.inf).softmax(-1)
            return (weights[..., None, :] @ state.values).squeeze(-2)


class QueryBank(SiteBank):
    """Queries and key gains by visit and branch, `[V, 2, D]`, and the read-out's, `[D]`."""

    def __init__(self, plan: Plan, config: Any, dim: int):
        super().__init__(plan)
        self.config = config
        self.query = nn.Parameter(torch.empty(plan.depth, len(BRANCHES), dim))
        self.gain = nn.Parameter(torch.empty(plan.depth, len(BRANCHES), dim))
        self.readout_query = nn.Parameter(torch.empty(dim))
        self.readout_gain = nn.Parameter(torch.empty(dim))
        assign(self, schedule="query,gain,readout_query,readout_gain")

    def reset_parameters(self) -> None:
        """Queries zero, which averages, and gains one."""
        for query in (self.query, self.readout_query):
            nn.init.zeros_(query)
        for gain in (self.gain, self.readout_gain):
            nn.init.ones_(gain)

    def tables(self) -> Query:
        """Parameters and one-hot slots."""
        slots = torch.tensor(self.config.slots(self.plan), device=self.query.device)
        one_hot = nn.functional.one_hot(slots, self.config.num_slots(self.plan))
        return Query(self.query, self.gain, one_hot.to(self.query.dtype))

    def readout(self) -> Query:
        """What `close` gets."""
        return Query(self.readout_query, self.readout_gain, None)
