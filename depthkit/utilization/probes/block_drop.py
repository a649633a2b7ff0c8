"""What the model loses without several visits in a row (arXiv:2403.17887, 2403.03853)."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from depthkit.registry import Spec
from depthkit.utilization.deltas import UNIT, Deltas, entry, listed
from depthkit.utilization.edits import Edit, skip
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Step
from depthkit.utilization.result import Matrix, Result, Scalar
from depthkit.utilization.statistics import Array, Sample
from depthkit.utilization.table import series

NAME = "block_drop_delta_nats.skip"


@PROBES.register("block_drop")
class BlockDrop(Probe):
    """Loss of the model with the visits l .. l + n - 1 skipped, minus the intact loss, for all l and n.

    The measured loss, where `angular` only measures an angle. It costs about max_block * L^2 / 2 layer
    evaluations.
    """

    class Config(Spec):
        """Settings of `block_drop`."""

        max_block: int = Field(8, ge=1)
        """Largest number n of visits in a row."""

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        sizes = range(1, min(config.max_block, self.depth) + 1)
        self._blocks = [(l, n) for n in sizes for l in range(self.depth + 1 - n)]
        edits: dict[int, Edit] = {row: skip(*range(l, l + n)) for row, (l, n) in enumerate(self._blocks)}
        self._deltas = Deltas(edits, len(edits), len(context.sequences))

    def edits(self) -> list[Edit]:
        """Every block."""
        return self._deltas.edits

    def update(self, step: Step) -> None:
        """Add the end of one altered stream."""
        self._deltas.add(step)

    def compute(self) -> Result:
        """A matrix over (l, n), the best start of each n with its loss, and the cost."""
        means, result = self._deltas.sample.means(), Result()
        values = np.full((self.depth, max(n for _, n in self._blocks)), np.nan)
        for (l, n), mean in zip(self._blocks, means, strict=True):
            values[l, n - 1] = mean
        words = "loss with the visits l .. l + n - 1 skipped minus intact loss"
        result.matrices[NAME] = Matrix(values, "first visit l", "n - 1", UNIT, words)
        self._best(result, means)
        cost, words = self._deltas.cost(self.depth), "layer evaluations that the blocks cost"
        result.scalars["block_drop_layer_evals"] = Scalar(cost, words)
        return result

    def _best(self, result: Result, means: Array) -> None:
        rows = self._cheapest(means)
        sample = self._deltas.sample
        best = Sample(sample.sums[rows], sample.counts[rows])
        result.samples["block_drop_best_delta_nats.skip"] = best
        found = series(best, self.context.seed, UNIT, "")
        for row, (start, n) in enumerate(self._blocks[row] for row in rows):
            words = f"the {n} visits in a row that cost least together"
            removed = listed(tuple(range(start, start + n)))
            result.scalars |= {
                f"block_drop_best_start@{n}": Scalar(start, f"first of {words}, counted from 0"),
                f"block_drop_best_removed@{n}": Scalar(removed, f"{words}, counted from 0"),
                f"block_drop_best_delta_nats@{n}": entry(found, row, f"loss without {words}, minus intact"),
            }

    def _cheapest(self, means: Array) -> list[int]:
        """The row of the best block of each size."""
        best: dict[int, int] = {}
        for row, (_, n) in enumerate(self._blocks):
            if n not in best or means[row] < means[best[n]]:
                best[n] = row
        return list(best.values())
