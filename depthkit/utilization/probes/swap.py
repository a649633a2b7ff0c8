"""What the model loses when two visits take each other's place (arXiv:2603.15389).

Shapes: R rows (pairs), S resamples, N sequences, L visits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from pydantic import Field

from depthkit.registry import Spec
from depthkit.utilization.deltas import UNIT, Deltas
from depthkit.utilization.edits import Edit, swap
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Step, Trace
from depthkit.utilization.result import Matrix, Result, Scalar, Series
from depthkit.utilization.statistics import Array, Sample, bootstrap, number, numbers

RELATIVE = "size of the loss difference over the intact loss"


@PROBES.register("swap")
class Swap(Probe):
    """Loss with visits i and j swapped minus the intact loss: does their order matter?

    `swap_delta_nats` keeps the sign; `swap_relative` is |difference| / intact loss (0: the order does not
    matter). A visit that runs at another place keeps its own gains. Up to `max_all` visits every pair is
    swapped, about L^3 / 3 layer evaluations; in deeper models neighbours, and for each distance 2, 4, 8, ..
    some seeded pairs.
    """

    class Config(Spec):
        """Settings of `swap`."""

        max_all: int = Field(32, ge=1)
        """Deepest model of which all pairs are swapped; 1 samples in every model."""
        starts: int = Field(8, ge=0)
        """Pairs of each distance in deeper models; 0 leaves only neighbours."""

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._all = self.depth <= config.max_all
        count = len(context.sequences)
        neighbours: dict[int, Edit] = {i: swap(i, i + 1) for i in range(self.depth - 1)}
        self._pairs = list(self._chosen())
        pairs: dict[int, Edit] = {row: swap(*pair) for row, pair in enumerate(self._pairs)}
        self._neighbours = Deltas(neighbours, self.depth, count)
        self._deltas = Deltas(pairs, len(pairs), count)
        self._intact = self.table(1)

    def _chosen(self) -> Iterator[tuple[int, int]]:
        """(i, j) with i < j: all, or a sample by distance."""
        generator = torch.Generator().manual_seed(self.context.seed)
        for distance in range(1, self.depth):
            starts = list(range(self.depth - distance))
            if not self._all and distance > 1:
                size = self.config.starts if distance.bit_count() == 1 else 0
                starts = torch.randperm(len(starts), generator=generator)[:size].sort().values.tolist()
            yield from ((start, start + distance) for start in starts)

    def see(self, trace: Trace) -> None:
        """Add the intact losses of one micro-batch."""
        self._intact.add(0, trace.rows, trace.scores.nats, trace.batch.scored.cpu())

    def edits(self) -> list[Edit]:
        """Every chosen pair; neighbours are among them."""
        return self._deltas.edits

    def update(self, step: Step) -> None:
        """Add the end of one altered stream."""
        self._neighbours.add(step)
        self._deltas.add(step)

    def compute(self) -> Result:
        """Neighbours as series, pairs as matrices, means by distance and over all pairs, and the cost."""
        result, seed = Result(), self.context.seed
        words = "loss with this visit and the next one swapped"
        signed = self._neighbours.series(seed, f"{words} minus intact loss")
        result.per_visit["swap_delta_nats.adjacent"] = signed
        result.samples["swap_delta_nats.adjacent"] = self._neighbours.sample
        result.per_visit["swap_relative.adjacent"] = self._relative(f"{RELATIVE}, {words}")
        cost = self._deltas.cost(self.depth)
        result.scalars["swap_layer_evals"] = Scalar(cost, "layer evaluations that the swaps cost")
        if self._pairs:
            self._add_pairs(result, self._deltas.sample)
        else:
            result.skipped["swap"] = "there is one visit, so no pair"
        return result

    def _relative(self, words: str) -> Series:
        def statistic(draws: Array | None = None) -> Array:
            return np.abs(self._neighbours.sample.means(draws)) / self._intact.sample.means(draws)

        found = bootstrap(statistic, len(self.context.sequences), self.context.seed)
        low, high = (numbers(found.low), numbers(found.high)) if found else (None, None)
        return Series(numbers(statistic()), "ratio", words, low, high)

    def _add_pairs(self, result: Result, sample: Sample) -> None:
        signed = sample.means()
        relative = np.abs(signed) / self._intact.sample.means()
        for name, unit, values in (("delta_nats", UNIT, signed), ("relative", "ratio", relative)):
            words = RELATIVE if name == "relative" else "loss with visits i and j swapped minus intact loss"
            matrix = np.full((self.depth, self.depth), np.nan)
            for (i, j), value in zip(self._pairs, values, strict=True):
                matrix[i, j] = value
            result.matrices[f"swap_{name}.pairs"] = Matrix(matrix, "visit i", "later visit j", unit, words)
            self._means(result, name, values, words)

    def _means(self, result: Result, name: str, values: Array, words: str) -> None:
        distances = np.array([j - i for i, j in self._pairs])
        for distance in (2**k for k in range(self.depth.bit_length()) if 2**k < self.depth):
            chosen = values[distances == distance]
            mean = number(chosen.mean()) if chosen.size else None
            tested = f"mean over {chosen.size} pairs at distance {distance}"
            result.scalars[f"swap_{name}.distance_{distance}"] = Scalar(mean, f"{words}, {tested}")
        whole = number(values.mean()) if self._all else None
        result.scalars[f"swap_{name}.mean_all_pairs"] = Scalar(whole, f"{words}, mean over all pairs")
        if not self._all:
            reason = f"{len(values)} pairs of a model deeper than {self.config.max_all} visits (max_all)"
            result.skipped[f"swap_{name}.mean_all_pairs"] = reason
