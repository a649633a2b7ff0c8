"""What the model loses when the order of its visits changes (arXiv:2407.09298)."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field

from depthkit.registry import Spec
from depthkit.utilization.deltas import UNIT, Deltas, entry
from depthkit.utilization.edits import Edit, Parallel, reorder, repeat
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Step, Trace
from depthkit.utilization.result import Result, Scalar
from depthkit.utilization.statistics import Sample
from depthkit.utilization.table import series
from depthkit.utilization.writes import irreplaceable


@PROBES.register("order")
class Order(Probe):
    """Loss minus intact loss with a window of visits reversed, a visit repeated, or the middle rearranged.

    The middle is everything but the first and last `ends` visits. It is reversed, shuffled, run in parallel
    (all its visits read its input, the mean of their outputs goes on), and replaced by its central visit, run
    as often. Each visit keeps its own gains wherever it runs.
    """

    class Config(Spec):
        """Settings of `order`."""

        window: int = Field(4, ge=2)
        """Visits that are reversed together."""
        times: int = Field(2, ge=2)
        """How often a repeated visit runs."""
        ends: int | None = Field(None, ge=0)
        """Visits at either end that are not of the middle; null takes a quarter of the depth."""
        shuffles: int = Field(3, ge=1)
        """Seeded random orders of the middle, of which the mean is reported."""

    alike = frozenset({"_parallel"})

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._parallel: str | None = None
        ends = self.depth // 4 if config.ends is None else config.ends
        self._middle = range(ends, self.depth - ends)
        self._window = self._deltas(self._reversed())
        self._repeat = self._deltas({v: repeat(v, config.times) for v in range(self.depth)})
        self._arranged: dict[str, Deltas] = {}

    def _deltas(self, edits: dict[int, Edit], rows: int | None = None) -> Deltas:
        return Deltas(edits, rows or self.depth, len(self.context.sequences))

    def _reversed(self) -> dict[int, Edit]:
        size = self.config.window
        starts = range(self.depth + 1 - size)
        return {start: reorder(start, tuple(range(start, start + size))[::-1]) for start in starts}

    def _arrangements(self) -> dict[str, list[Edit]]:
        """Edits of the middle by name; the numbers of several are averaged."""
        first, order = self._middle.start, tuple(self._middle)
        centre = (order[(len(order) - 1) // 2],) * len(order)
        found: dict[str, list[Edit]] = {
            "middle_reversed": [reorder(first, order[::-1])],
            "middle_shuffled": [reorder(first, shuffled) for shuffled in self._shuffled(order)],
            "middle_replaced_by_centre": [reorder(first, centre)],
        }
        return found if self._parallel else found | {"middle_parallel": [Parallel(first, len(order))]}

    def _shuffled(self, order: tuple[int, ...]) -> list[tuple[int, ...]]:
        generator = torch.Generator().manual_seed(self.context.seed)
        draws = (torch.randperm(len(order), generator=generator) for _ in range(self.config.shuffles))
        return [tuple(order[place] for place in draw.tolist()) for draw in draws]

    def see(self, trace: Trace) -> None:
        """Ask whether outputs can be averaged."""
        self._parallel = irreplaceable(trace)

    def edits(self) -> list[Edit]:
        """All of them."""
        if len(self._middle) > 1:
            for name, edits in self._arrangements().items():
                self._arranged[name] = self._deltas(dict(enumerate(edits)), len(edits))
        return [edit for deltas in self._asked for edit in deltas.edits]

    @property
    def _asked(self) -> list[Deltas]:
        return [self._window, self._repeat, *self._arranged.values()]

    def update(self, step: Step) -> None:
        """Add the end of one altered stream."""
        for deltas in self._asked:
            deltas.add(step)

    def compute(self) -> Result:
        """A series over windows, one over repeated visits, and numbers for the rearranged middle."""
        result, config = Result(), self.config
        words = {
            "reversed_window": (self._window, f"the {config.window} visits from this one on in reverse"),
            "repeated": (self._repeat, f"this visit run {config.times} times in a row"),
        }
        for name, (deltas, meaning) in words.items():
            name, definition = f"order_delta_nats.{name}", f"loss with {meaning} minus intact loss"
            result.samples[name] = deltas.sample
            result.per_visit[name] = deltas.series(self.context.seed, definition)
        for name, deltas in self._arranged.items():
            result.scalars[f"order_delta_nats.{name}"] = self._scalar(name, deltas.sample)
        result.skipped |= self._left_out()
        return result

    def _scalar(self, name: str, sample: Sample) -> Scalar:
        whole = Sample(sample.sums.sum(0, keepdims=True), sample.counts.sum(0, keepdims=True))
        middle = f"visits {self._middle.start} to {self._middle.stop - 1}, counted from 0"
        words = f"loss with the {name.replace('_', ' ')} minus intact loss; the middle is {middle}"
        return entry(series(whole, self.context.seed, UNIT, words), 0)

    def _left_out(self) -> dict[str, str]:
        found = {}
        if self.depth < self.config.window:
            found["order_delta_nats.reversed_window"] = (
                f"{self.depth} visits are fewer than a window of {self.config.window}"
            )
        if len(self._middle) < 2:
            found["order_delta_nats.middle"] = "fewer than two visits between the ends"
        elif self._parallel:
            found["order_delta_nats.middle_parallel"] = self._parallel
        return found
