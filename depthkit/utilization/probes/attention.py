"""How far and how widely tokens look: entropy, sparsity, sink and distance of attention.

Sources: attention sinks arXiv:2309.17453; entropy as a sign of trouble arXiv:2303.06296.

Shapes: B sequences, T positions, H heads, L visits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from depthkit.registry import Spec
from depthkit.utilization.accumulators import Total, Totals
from depthkit.utilization.attending import Attending, attending
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Trace
from depthkit.utilization.result import Matrix, Result, Series
from depthkit.utilization.statistics import Array, numbers
from depthkit.utilization.table import both_means
from depthkit.utilization.watching import told

METRICS = {
    "attention_entropy": ("ratio", "entropy of attention over the log of the number of keys a query sees"),
    "attention_sparsity": ("fraction", "share of the keys a query sees that get a probability below {eps}"),
    "attention_sink": ("probability", "attention to token 0, of the queries that see it"),
    "attention_distance": ("tokens", "mean distance between a query and where it looks"),
}


@PROBES.register("attention")
class Attention(Probe):
    """Entropy, sparsity, sink and distance of attention, per query; heads averaged, and the extreme heads.

    Only keys that a query sees count: what is masked is neither sparse nor attended to. Probabilities are
    formed visit by visit and dropped, so O(T^2) memory is needed once.
    """

    class Config(Spec):
        """Settings of `attention`."""

        eps: float = Field(1e-4, gt=0, lt=1)
        """Probabilities below this count as none."""

    alike = frozenset({"_reasons"})

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._tables = {name: self.table(self.depth) for name in METRICS}
        self._heads = {name: Totals() for name in METRICS}
        self._counts = {name: Total(self.depth) for name in METRICS}
        self._reasons: dict[int, str] = {}

    def see(self, trace: Trace) -> None:
        """Run every visit of one micro-batch again, and look at its attention."""
        for visit in range(self.depth):
            if visit in self._reasons:
                continue
            found = attending(trace, visit)
            self.context.count(len(trace.batch), 1)
            if isinstance(found, str):
                self._reasons[visit] = found
            else:
                self._add(trace, visit, found)

    def _add(self, trace: Trace, visit: int, found: Attending) -> None:
        for name, (values, defined) in measured(found, self.config.eps).items():
            valid = defined & trace.batch.mask
            self._tables[name].add(visit, trace.rows, values.mean(1), valid)
            self._heads[name].add(visit, values.double().where(valid[:, None], 0.0).sum((0, 2)).cpu())
            self._counts[name].add(visit, int(valid.sum()))

    def compute(self) -> Result:
        """Series over heads' mean, least and greatest, and a matrix (visit, head) of every metric."""
        result = Result()
        if self._reasons:
            result.skipped["attention"] = told(self._reasons)
        for visit in self._reasons:
            self._forget(visit)
        if len(self._reasons) == self.depth:
            return result
        for name, (unit, words) in METRICS.items():
            definition = words.format(eps=self.config.eps)
            result.per_visit |= both_means(
                name, self._tables[name], self.context.seed, unit, definition + ", mean over heads"
            )
            by_head = self._by_head(name)
            result.matrices[f"{name}.by_head"] = Matrix(by_head, "visit", "head", unit, definition)
            for which, extreme in {"min_head": np.fmin, "max_head": np.fmax}.items():
                values = numbers(extreme.reduce(by_head, axis=1))
                result.per_visit[f"{name}.{which}"] = Series(
                    values, unit, f"{definition}, {which[:3]} over heads"
                )
        return result

    def _forget(self, visit: int) -> None:
        """Drop what earlier micro-batches of a visit showed, when a later one could not be seen."""
        for name in METRICS:
            for sample in (self._tables[name].sample, self._tables[name].sample_no_token0):
                sample.counts[visit] = 0
            self._heads[name].values.pop(visit, None)

    def _by_head(self, name: str) -> Array:
        heads = {visit: sums.numpy() for visit, sums in self._heads[name].values.items()}
        values = np.full((self.depth, max(len(sums) for sums in heads.values())), np.nan)
        for visit, sums in heads.items():
            with np.errstate(invalid="ignore", divide="ignore"):
                values[visit, : len(sums)] = sums / self._counts[name].values[visit]
        return values


def measured(found: Attending, eps: float) -> dict[str, tuple[Tensor, Tensor]]:
    """By metric: values `[B, H, T]`, and for which queries `[B, T]` they are defined."""
    weights, visible = found
    keys = visible.sum(-1)
    position = torch.arange(weights.shape[-1], device=weights.device, dtype=weights.dtype)
    distance = (position[:, None] - position).abs()
    below = ((weights < eps) & visible[:, None]).sum(-1)
    real = keys > 0
    return {
        "attention_entropy": (torch.special.entr(weights).sum(-1) / keys[:, None].log(), keys > 1),
        "attention_sparsity": (below / keys[:, None], real),
        "attention_sink": (weights[..., 0], visible[..., 0]),
        "attention_distance": ((weights * distance).sum(-1), real),
    }
