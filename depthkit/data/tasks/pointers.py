"""Pointer chasing: f visits N places in one cycle, and p hops from x lead to f applied p times to x.

Shapes: B problems, N places, T = 2N tokens.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from depthkit.data import holding_out
from depthkit.data.batch import NOT_SCORED

HELD_OUT = 0.1
"""Share of the (N - 1)! cycles that training never sees."""
COUNTED = 8
"""Up to this many places all cycles are looked at, so that there are some on either side of the split."""

Array = NDArray[np.int64]


@dataclass(frozen=True)
class Problems:
    """B cycles, each shown in an order of its own."""

    rings: Array
    """[B, N] the places in the order f visits them, from place 0 on."""
    pairs: Array
    """[B, N] the order in which the pairs (x, f(x)) are told."""
    queries: Array
    """[B, N] the order in which places are asked for."""

    def ids(self) -> Array:
        """[B, T] the pairs, then the queries; see `vocab_size`."""
        size = self.rings.shape[1]
        told = self.pairs * size + follow(self.rings, self.pairs, 1)
        return np.concatenate([told, size * size + self.queries], axis=1)

    def targets(self, hops: int) -> Array:
        """[B, T] at each query the token of the place that many hops on; nothing else is scored."""
        size = self.rings.shape[1]
        answers = size * size + follow(self.rings, self.queries, hops)
        return np.concatenate([np.full_like(answers, NOT_SCORED), answers], axis=1)

    def part(self, first: int, last: int) -> Problems:
        """Problems `first` to `last - 1`."""
        return Problems(self.rings[first:last], self.pairs[first:last], self.queries[first:last])


def vocab_size(size: int) -> int:
    """Token x * N + y is the pair (x, y); token N * N + x is the place x, asked for or answered."""
    return size * size + size


def draw(rng: np.random.Generator, count: int, size: int, held_out: bool) -> Problems:
    """`count` random problems of N = `size` places, their cycles from one side of the split."""
    rings = _rings(rng, count, size, held_out)
    pairs, queries = (rng.permuted(np.tile(np.arange(size), (count, 1)), axis=1) for _ in range(2))
    return Problems(rings, pairs, queries)


def _rings(rng: np.random.Generator, count: int, size: int, held_out: bool) -> Array:
    rings, wrong = np.zeros((count, size), np.int64), np.arange(count)
    while wrong.size:
        rings[wrong, 1:] = rng.permuted(np.tile(np.arange(1, size), (wrong.size, 1)), axis=1)
        wrong = wrong[[is_held_out(ring) != held_out for ring in rings[wrong].tolist()]]
    return rings


def is_held_out(ring: Sequence[int]) -> bool:
    """Whether a cycle, written from place 0 on, is kept from training; a hash of it decides."""
    return holding_out.place(_text(ring)) <= _threshold(len(ring))


@functools.lru_cache
def _threshold(size: int) -> float:
    if size > COUNTED:
        return HELD_OUT
    rings = ((0, *rest) for rest in itertools.permutations(range(1, size)))
    return holding_out.threshold(map(_text, rings), HELD_OUT)


def _text(ring: Sequence[int]) -> str:
    return " ".join(map(str, ring))


def follow(rings: Array, starts: Array, hops: int) -> Array:
    """[B, K] where `hops` steps along each ring lead from the places `starts` [B, K]."""
    position = np.take_along_axis(np.argsort(rings, axis=1), starts, axis=1)
    return np.take_along_axis(rings, (position + hops) % rings.shape[1], axis=1)
