"""Logarithms of gains as functions of depth, starting points for them, and a vector that turns with depth.

Shapes: V visits, 2 branches (mixer, ffn), 3 basis functions, K rows of a table.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from depthkit.model.gains import BRANCHES
from depthkit.model.plan import Plan

NUM_FUNCTIONS = 3


class Depths(NamedTuple):
    """Where functions of depth are wanted: 1-based indices l, and the total depth L."""

    indices: list[int]
    total: int

    @classmethod
    def of(cls, plan: Plan, indexing: str) -> Depths:
        """Those of the visits of a plan."""
        return cls(plan.indices(indexing), plan.total(indexing))

    @property
    def relative(self) -> list[float]:
        """l / L."""
        return [l / self.total for l in self.indices]

    def distinct(self) -> Depths:
        """Each l once, ascending."""
        return Depths(sorted(set(self.indices)), self.total)


class Start(NamedTuple):
    """Coefficients `[2, 3]`, in the basis, of the logarithms of the read and the write gains."""

    read: Tensor
    write: Tensor


def evaluate(coefficients: Tensor, at: Depths) -> Tensor:
    """sum_j coefficients[branch, j] phi_j(l), phi = (1, l/L, ln l / ln max(L, 2)): `[2, 3]` -> `[V, 2]`."""
    span = math.log(max(at.total, 2))
    rows = [(1.0, l / at.total, math.log(l) / span) for l in at.indices]
    phi = torch.tensor(rows, dtype=torch.float32, device=coefficients.device).view(-1, NUM_FUNCTIONS)
    return (phi[:, None, :] * coefficients).sum(-1)  # no matrix product: autocast would round it


def interpolate(table: Tensor, knots: Sequence[float], places: Sequence[float]) -> Tensor:
    """A table `[K, 2]` whose rows stand at ascending `knots`, linearly between them: `[V, 2]`.

    At a knot it is the row itself, outside the knots the nearest row.
    """
    above = [min(bisect_left(knots, place), len(knots) - 1) for place in places]
    below = [max(high - 1, 0) for high in above]
    parts = [
        min(max((place - knots[low]) / (knots[high] - knots[low]), 0.0), 1.0) if high > low else 1.0
        for place, low, high in zip(places, below, above, strict=True)
    ]
    low, high = (torch.tensor(rows, dtype=torch.int64, device=table.device) for rows in (below, above))
    return torch.lerp(table[low], table[high], torch.tensor(parts, device=table.device)[:, None])


def powers(read: float, write: float) -> Callable[[int, float | None], Start]:
    """Gains l^read and l^write, the same for both branches."""

    def start(total: int, growth: float | None) -> Start:
        span = math.log(max(total, 2))
        return Start(*(_rows([(0.0, 0.0, power * span)] * len(BRANCHES)) for power in (read, write)))

    return start


def equal_angle(total: int, growth: float | None) -> Start:
    """Every branch turns the stream by the same angle: it grows geometrically over the n = 2L branches.

    Branch k writes w_k = sqrt(G^(2/n) - 1) G^((k-1)/n); a stream that starts with RMS 1 and branches that
    return RMS 1 then give angles with cos = G^(-1/n) everywhere. What is read is l^(-1/4).

    Args:
        total: L.
        growth: G, how many times the stream grows in all; None means min(100, 1 + n/4).
    """
    count = len(BRANCHES) * total
    log_growth = math.log(growth or min(100.0, 1 + count / 4))
    first = math.log(math.expm1(2 * log_growth / count)) / 2
    # Block l has the branches k = 2l - 1 (mixer) and 2l (ffn), so (k - 1) / n is l / L less 2 or 1 times 1/n.
    rows = [(first - behind * log_growth / count, log_growth, 0.0) for behind in (2, 1)]
    return Start(powers(-0.25, 0.0)(total, None).read, _rows(rows))


def _rows(rows: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32)


class Form(NamedTuple):
    """How a function of depth is kept in a parameter; `rows` are the depths it is kept for."""

    shape: Callable[[Depths], tuple[int, int] | None]
    """rows -> shape of the parameter; None where nothing is learned."""
    fill: Callable[[Tensor, Depths], Tensor]
    """Coefficients, rows -> the parameter that equals them."""
    value: Callable[[Tensor, Depths, Depths], Tensor]
    """Parameter (or coefficients, where nothing is learned), rows, depths wanted -> `[V, 2]`."""

    def size(self, rows: Depths) -> int:
        """Number of learned values."""
        return math.prod(self.shape(rows) or (0,))


FORMS = {
    "basis": Form(
        lambda rows: (len(BRANCHES), NUM_FUNCTIONS),
        lambda start, rows: start,
        lambda kept, rows, at: evaluate(kept, at),
    ),
    "table": Form(
        lambda rows: (len(rows.indices), len(BRANCHES)),
        evaluate,
        lambda kept, rows, at: interpolate(kept, rows.relative, at.relative),
    ),
    "fixed": Form(
        lambda rows: None,
        lambda start, rows: start,
        lambda kept, rows, at: evaluate(kept, at),
    ),
}
STARTS: dict[str, Callable[[int, float | None], Start]] = {
    "damp_amplify": powers(-0.5, 0.25),
    "neutral": powers(0.0, 0.0),
    "lns": powers(-0.5, 0.0),
    "equal_angle": equal_angle,
}
"""Name -> `(L, growth) -> Start`."""


def turned(vector: Tensor, angle: Tensor, relative: Sequence[float], base: float) -> Tensor:
    """A vector whose pairs (2i, 2i+1) turn with depth, by angle base^(-2i/D) l/L.

    Args:
        vector: `[D]`; with D odd the last channel stays.
        angle: `[1]`.
        relative: l / L of every visit.

    Returns:
        `[V, D]`; every row has the norm of `vector`.
    """
    width = len(vector)
    frequency = base ** (-torch.arange(0, width - 1, 2, device=vector.device) / width)
    turn = angle * torch.tensor(relative, device=vector.device)[:, None] * frequency
    cos, sin = turn.cos(), turn.sin()
    even, odd = vector[0 : width - 1 : 2], vector[1::2]
    pairs = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(1)
    return torch.cat([pairs, vector[pairs.shape[1] :].expand(len(pairs), -1)], 1)
