"""How tokens spread over experts, visit by visit: pooled over layers, their imbalances would cancel.

Sources: MaxVio arXiv:2408.15664; load and router entropy arXiv:2101.03961.

Shapes: N sequences, L visits, E experts, S resamples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from pydantic import Field
from torch import Tensor

from depthkit.registry import Spec
from depthkit.utilization.accumulators import Totals
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Trace
from depthkit.utilization.result import Matrix, Result, Scalar, Series
from depthkit.utilization.routing import DENSE, Routing, routing
from depthkit.utilization.statistics import Array, Number, bootstrap, number
from depthkit.utilization.table import both_means
from depthkit.utilization.watching import told

NONE = "no layer of this model has experts"
UNSCORED = "the router's scores cannot be told from what it returns"
ROUTER = {
    "router_entropy_nats": ("nats", "entropy of the router's scores of a token; ln E when undecided"),
    "router_margin": ("probability", "router's score of a token's first expert minus that of its second"),
}


@PROBES.register("experts")
class Experts(Probe):
    """Load of every expert at every visit, its evenness, dead experts, and how decided the router is.

    f_e is the share of the choices that expert e got, over tokens that are no padding; it sums to 1.
    """

    class Config(Spec):
        """Settings of `experts`."""

        dead_below: float = Field(1e-4, ge=0, lt=1)
        """An expert with a smaller share of the choices is dead."""

    alike = frozenset({"_reasons", "_unscored"})

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._chosen = Totals()
        self._loads: dict[int, Array] = {}
        self._reasons: dict[int, str] = {}
        self._tables = {name: self.table(self.depth) for name in ROUTER}
        self._unscored: set[int] = set()

    def see(self, trace: Trace) -> None:
        """Count the choices of one micro-batch."""
        for visit in range(self.depth):
            if visit not in self._reasons:
                found = routing(self.context, trace, visit)
                if isinstance(found, str):
                    self._reasons[visit] = found
                else:
                    self._add(trace, visit, found)

    def _add(self, trace: Trace, visit: int, found: Routing) -> None:
        mask = trace.batch.mask
        count = len(self.context.sequences)
        self._chosen.add_rows(visit, choices(found, mask).cpu(), trace.rows, count)
        if found.shares is None:
            self._unscored.add(visit)
            return
        entropy, margin = decidedness(found.shares)
        self._tables["router_entropy_nats"].add(visit, trace.rows, entropy, mask)
        self._tables["router_margin"].add(visit, trace.rows, margin, mask)

    def compute(self) -> Result:
        """Loads (visit, expert), their summaries by visit, and those of the worst and the mean visit."""
        result = Result()
        unseen = {visit: reason for visit, reason in self._reasons.items() if reason != DENSE}
        seen = [visit for visit in range(self.depth) if visit not in self._reasons]
        self._loads = {visit: self._chosen.values[visit].numpy() for visit in seen}
        if unseen or not seen:
            result.skipped["experts"] = told(unseen) if unseen else NONE
        if not seen:
            return result
        self._summaries(result)
        self._router(result)
        words = "share of the choices of a visit that an expert got"
        result.matrices["expert_load.share"] = Matrix(self._shares(), "visit", "expert", "fraction", words)
        return result

    def _shares(self) -> Array:
        values = np.full((self.depth, max(load.shape[1] for load in self._loads.values())), np.nan)
        for visit, load in self._loads.items():
            values[visit, : load.shape[1]] = load.sum(0) / load.sum()
        return values

    def _summaries(self, result: Result) -> None:
        table = summaries(self.config.dead_below)
        loads = list(self._loads.values())

        def statistic(draws: Array) -> Array:
            return np.stack([[summary(draws @ load) for load in loads] for _, summary in table.values()])

        sequences = len(self.context.sequences)
        found = statistic(np.ones((1, sequences)))[..., 0]
        interval = bootstrap(statistic, sequences, self.context.seed)
        for row, (name, (words, _)) in enumerate(table.items()):
            ends = (interval.low, interval.high) if interval else ()
            bounds = [self._spread(end[row]) for end in ends]
            result.per_visit[f"{name}.pooled"] = Series(self._spread(found[row]), "ratio", words, *bounds)
            result.scalars[f"{name}.mean_over_visits"] = Scalar(
                number(found[row].mean()), f"{words}: mean over visits"
            )

    def _spread(self, values: Array) -> list[Number]:
        """One number for every visit, from those of the visits with experts."""
        columns = dict(zip(self._loads, values, strict=True))
        return [number(columns.get(visit)) for visit in range(self.depth)]

    def _router(self, result: Result) -> None:
        for visit in self._unscored:
            result.skipped[f"router_entropy_nats[{visit}]"] = (
                "the router's scores cannot be told from its output"
            )
        for name, (unit, words) in ROUTER.items():
            result.per_visit |= both_means(name, self._tables[name], self.context.seed, unit, words)


def choices(found: Routing, mask: Tensor) -> Tensor:
    """How often each sequence's tokens chose each expert, `[B, E]`, padding left out."""
    chosen = found.experts.flatten(1)
    counted = mask[..., None].expand_as(found.experts).flatten(1).double()
    empty = counted.new_zeros(len(chosen), found.num_experts)
    return empty.scatter_add(1, chosen, counted)


def decidedness(shares: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy in nats, and the first expert's share minus the second's; `[B, T, E]` -> `[B, T]` each."""
    best = shares.topk(min(2, shares.shape[-1]), dim=-1).values
    return -(shares * shares.clamp(min=1e-30).log()).sum(-1), best[..., 0] - best[..., 1:].sum(-1)


def summaries(dead_below: float) -> dict[str, tuple[str, Callable[[Array], Array]]]:
    """Name -> (definition, function of choice counts `[.., E]`, NaN where there are none)."""
    return {
        "expert_load_entropy": ("entropy of the load over ln E: 1 when even", _evenness),
        "expert_load_cv": ("standard deviation of the load over its mean", _variation),
        "expert_max_violation": ("E times the largest load, minus 1: 0 when even", _violation),
        "expert_dead": (
            f"share of experts that got less than {dead_below:g} of the choices",
            lambda counts: _where(counts, (_loads(counts) < dead_below).mean(-1)),
        ),
    }


def _loads(counts: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return counts / counts.sum(-1, keepdims=True)


def _where(counts: Array, values: Array) -> Array:
    return np.where(counts.sum(-1) > 0, values, np.nan)


def _evenness(counts: Array) -> Array:
    loads = _loads(counts)
    entropy = -(loads * np.log(np.where(loads > 0, loads, 1.0))).sum(-1)
    with np.errstate(invalid="ignore"):
        return entropy / np.log(counts.shape[-1])


def _variation(counts: Array) -> Array:
    return _loads(counts).std(-1) * counts.shape[-1]


def _violation(counts: Array) -> Array:
    return _loads(counts).max(-1) * counts.shape[-1] - 1
