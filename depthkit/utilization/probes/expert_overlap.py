"""Whether the loops of a looped mixture of experts choose different experts.

Where they choose the same ones (selection collapse), looping repeats one dense computation. Chance is k / E.

Shapes: B sequences, T positions, E experts, k experts a token, R loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthkit.model.ffns.router import selection_overlap
from depthkit.utilization.accumulators import Totals
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Trace
from depthkit.utilization.result import Matrix, Result, Scalar
from depthkit.utilization.routing import DENSE, Routing, routing
from depthkit.utilization.statistics import Array, number
from depthkit.utilization.table import TokenTable, both_means, series

UNLOOPED = "no layer with experts is visited in more than one loop"
TOKENS = {
    "expert_overlap": "share of a token's k experts that another loop chose too, mean over pairs of loops",
    "expert_overlap_index": "that overlap over its chance k / E: 1 when loops choose independently",
    "expert_same_set": "share of tokens that go to the same experts in every loop",
    "expert_distinct": "different experts a token meets in all loops, over min(E, k R)",
}


@dataclass
class Slot:
    """What was counted of a layer with experts: choices two loops share `[R, R]`, and loads `[R, E]`."""

    overlap: Array
    loads: Array
    chance: float


@PROBES.register("expert_overlap")
class ExpertOverlap(Probe):
    """Overlap of the experts that loops choose for the same token, against the overlap by chance."""

    alike = frozenset({"_chances", "_reasons"})

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        groups: dict[tuple[str, int], list[int]] = {}
        for visit, place in enumerate(context.places):
            groups.setdefault((place.segment, place.slot), []).append(visit)
        self._groups = {name: visits for name, visits in groups.items() if len(visits) > 1}
        self._segments = list(dict.fromkeys(segment for segment, _ in self._groups))
        self._overlaps, self._loads = Totals(), Totals()
        self._chances: dict[tuple[str, int], float] = {}
        self._reasons: dict[tuple[str, int], str] = {}
        self._tables = {name: self.table(len(self._segments)) for name in TOKENS}
        self._previous = self.table(self.depth)

    def see(self, trace: Trace) -> None:
        """Compare the loops of one micro-batch."""
        for name, visits in self._groups.items():
            if name in self._reasons:
                continue
            found = [routing(self.context, trace, visit, scored=False) for visit in visits]
            routed = [entry for entry in found if isinstance(entry, Routing)]
            if len(routed) == len(found):
                self._add(trace, name, routed)
            else:
                self._reasons[name] = next(entry for entry in found if isinstance(entry, str))

    def _add(self, trace: Trace, name: tuple[str, int], found: list[Routing]) -> None:
        visits, mask, experts = self._groups[name], trace.batch.mask, found[0].num_experts
        sets = torch.stack([entry.experts for entry in found])
        loops, k = len(sets), sets.shape[-1]
        chance = self._chances[name] = k / experts
        overlap, loads = (torch.zeros(loops, size, dtype=torch.float64) for size in (loops, experts))
        mean = torch.zeros(mask.shape, device=mask.device)
        for loop, own in enumerate(sets):
            shared = selection_overlap(own[None], sets)
            overlap[loop] = shared.where(mask, 0.0).double().sum((1, 2)).cpu()
            loads[loop] = torch.bincount(own[mask].flatten(), minlength=experts).cpu()
            mean += (shared.sum(0) - 1) / (loops * (loops - 1))
            if loop:
                self._previous.add(visits[loop], trace.rows, shared[loop - 1], mask)
        self._overlaps.add(name, overlap)
        self._loads.add(name, loads)
        same, distinct = variety(sets, experts)
        row = self._segments.index(name[0])
        for key, value in zip(TOKENS, (mean, mean / chance, same, distinct), strict=True):
            self._tables[key].add(row, trace.rows, value, mask)

    def _slots(self) -> dict[tuple[str, int], Slot]:
        overlaps, loads = self._overlaps.values, self._loads.values
        return {
            name: Slot(overlaps[name].numpy(), loads[name].numpy(), chance)
            for name, chance in self._chances.items()
        }

    def compute(self) -> Result:
        """By segment overlaps and divergences of loops (R x R); by visit the overlap with the loop before."""
        result, found = Result(), self._slots()
        unseen = {group: reason for group, reason in self._reasons.items() if reason != DENSE}
        for (segment, slot), reason in unseen.items():
            result.skipped[f"expert_overlap[{segment}.{slot}]"] = reason
        if not found and not unseen:
            result.skipped["expert_overlap"] = UNLOOPED
        if not found:
            return result
        words = "share of a token's k experts that the loop before had chosen too"
        result.per_visit |= both_means(
            "expert_overlap_previous", self._previous, self.context.seed, "fraction", words
        )
        for segment in self._segments:
            slots = [slot for (name, _), slot in found.items() if name == segment]
            if slots:
                self._matrices(result, segment, slots)
                self._scalars(result, segment, slots)
        return result

    def _matrices(self, result: Result, segment: str, slots: list[Slot]) -> None:
        loops = ("loop", "loop")
        with np.errstate(invalid="ignore"):
            tokens = int(self.context.sequences.mask.sum())
            overlap = _mean([slot.overlap / tokens for slot in slots])
        words = "share of a token's k experts that both loops chose, mean over layers"
        result.matrices[f"expert_overlap.{segment}"] = Matrix(overlap, *loops, "fraction", words)
        divergence = _mean([divergences(slot.loads) for slot in slots])
        words = "Jensen-Shannon divergence of the expert loads of two loops, mean over layers"
        result.matrices[f"expert_load_divergence_nats.{segment}"] = Matrix(divergence, *loops, "nats", words)

    def _scalars(self, result: Result, segment: str, slots: list[Slot]) -> None:
        row = self._segments.index(segment)
        for name, words in TOKENS.items():
            result.scalars[f"{name}.{segment}"] = _scalar(self._tables[name], row, self.context.seed, words)
        chance = float(np.mean([slot.chance for slot in slots]))
        result.scalars[f"expert_overlap_chance.{segment}"] = Scalar(chance, "k / E, mean over layers")
        name = f"expert_load_divergence_nats.{segment}"
        divergence = result.matrices[name]
        off = divergence.values[~np.eye(len(divergence.values), dtype=bool)]
        result.scalars[name] = Scalar(number(off.mean()), f"{divergence.definition} and pairs of loops")


def variety(sets: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Whether all loops choose the same set, and how many experts they choose over min(E, k R).

    Selections `[R, B, T, k]` -> `[B, T]` each.
    """
    ordered = sets.sort(-1).values
    met = sets.movedim(0, -2).flatten(-2).sort(-1).values
    distinct = 1 + (met[..., 1:] != met[..., :-1]).sum(-1)
    return (ordered == ordered[:1]).all(-1).all(0), distinct / min(experts, met.shape[-1])


def _scalar(table: TokenTable, row: int, seed: int, words: str) -> Scalar:
    found = series(table.sample, seed, "", words)
    bounds = (found.low[row], found.high[row]) if found.low and found.high else (None, None)
    return Scalar(found.values[row], words, *bounds)


def divergences(counts: Array) -> Array:
    """Jensen-Shannon divergence in nats of every two rows of counts `[R, E]`: 0 equal, ln 2 disjoint."""
    with np.errstate(invalid="ignore"):
        p = counts / counts.sum(-1, keepdims=True)
    one, other = p[:, None], p[None]
    middle = (one + other) / 2
    return (_relative(one, middle) + _relative(other, middle)) / 2


def _relative(p: Array, q: Array) -> Array:
    """KL(p || q) over the last axis."""
    ratio = np.where(p > 0, p, 1.0) / np.where(p > 0, q, 1.0)
    return (p * np.log(ratio)).sum(-1)


def _mean(tables: list[Array]) -> Array:
    """Mean of square tables; where some have fewer loops, of those that have as many."""
    size = max(len(table) for table in tables)
    padded = np.full((len(tables), size, size), np.nan)
    for place, table in zip(padded, tables, strict=True):
        place[: len(table), : len(table)] = table
    return np.nansum(padded, 0) / np.isfinite(padded).sum(0)
