"""How many visits can go when the cheapest goes first and all are measured again (SLEB, arXiv:2402.09025)."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from depthkit.registry import Spec
from depthkit.utilization.deltas import UNIT, Deltas, listed
from depthkit.utilization.edits import Edit, skip
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Step
from depthkit.utilization.result import Matrix, Result, Scalar, Series
from depthkit.utilization.statistics import Array, Number, Sample, number

CURVE = "greedy_drop_delta_nats.after_removal"


@PROBES.register("greedy_drop")
class GreedyDrop(Probe):
    """Remove the visit whose removal costs least, measure every other visit again, and so on.

    It ends with the first removal that puts the loss more than `budget_nats` above the intact model's, or
    after `max_removed`. A round costs up to L^2 / 2 layer evaluations, more the earlier the first removed
    visit stands. The order is chosen on the sequences that measure it, so intervals are of that order only.
    """

    class Config(Spec):
        """Settings of `greedy_drop`."""

        budget_nats: float = Field(0.05, ge=0)
        """Rise of the loss, in nats a token, that ends it."""
        max_removed: int = Field(16, ge=1)
        """Most removals."""

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._order: list[int] = []
        self._losses: list[float] = []
        self._rounds: list[Array] = []
        self._curve = Sample(*np.zeros((2, self.depth, len(context.sequences))))
        self._cost = 0.0
        self._deltas = self._next_round()

    def _next_round(self) -> Deltas:
        left = [visit for visit in range(self.depth) if visit not in self._order]
        edits: dict[int, Edit] = {visit: skip(*self._order, visit) for visit in left}
        found = Deltas(edits, self.depth, len(self.context.sequences))
        self._cost += found.cost(self.depth)
        return found

    def edits(self) -> list[Edit]:
        """Each visit skipped alone."""
        return self._deltas.edits

    def update(self, step: Step) -> None:
        """Add the end of one altered stream."""
        self._deltas.add(step)

    def more(self) -> list[Edit]:
        """Remove the cheapest visit; then each of the others beside what is gone."""
        if self._finished:
            return []
        sample = self._deltas.sample
        means = sample.means()
        best = int(np.nanargmin(means))
        row = len(self._order)
        self._curve.sums[row], self._curve.counts[row] = sample.sums[best], sample.counts[best]
        self._order.append(best)
        self._losses.append(float(means[best]))
        self._rounds.append(means)
        if self._finished:
            return []
        self._deltas = self._next_round()
        return self._deltas.edits

    @property
    def _over(self) -> bool:
        return bool(self._losses) and self._losses[-1] > self.config.budget_nats

    @property
    def _finished(self) -> bool:
        return self._over or len(self._order) >= min(self.depth, self.config.max_removed)

    def compute(self) -> Result:
        """Order, losses, every round's losses, the visits that can go, and the cost."""
        result = Result(samples={CURVE: self._curve})
        self._series(result)
        words = "visits in the order of their removal, counted from 0; the last may be over the budget"
        result.scalars["greedy_drop_order"] = Scalar(listed(tuple(self._order)), words)
        budget = self.config.budget_nats
        within = max((k for k, loss in enumerate(self._losses, 1) if loss <= budget), default=0)
        words = f"visits that can go together within {budget} nats, greedily, counted from 0"
        result.scalars["greedy_drop_removed"] = Scalar(listed(tuple(sorted(self._order[:within]))), words)
        result.scalars["greedy_drop_layer_evals"] = Scalar(self._cost, "layer evaluations of all rounds")
        if not self._over and len(self._order) < self.depth:
            result.skipped["droppable"] = (
                f"greedy_drop stopped after {len(self._order)} removals (max_removed), the last within "
                f"{budget} nats: more may be droppable"
            )
        return result

    def _series(self, result: Result) -> None:
        ranks: list[Number] = [None] * self.depth
        losses: list[Number] = [None] * self.depth
        for rank, (visit, loss) in enumerate(zip(self._order, self._losses, strict=True), 1):
            ranks[visit], losses[visit] = rank, number(loss)
        words = "place of the visit in the order of greedy removal, from 1; null if it was never removed"
        result.per_visit["greedy_drop_rank.skip"] = Series(ranks, "removals", words)
        words = "loss without the visit and all that were greedily removed before it, minus intact loss"
        result.per_visit["greedy_drop_delta_nats.skip"] = Series(losses, UNIT, words)
        words = "loss minus intact loss when a visit goes in a round, beside all removed in earlier rounds"
        result.matrices["greedy_drop_delta_nats.rounds"] = Matrix(
            np.stack(self._rounds), "round", "visit", UNIT, words
        )
