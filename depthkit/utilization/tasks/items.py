"""Multiple-choice items as token ids: what a model is asked, and what counts as right.

Shapes: R rows (texts to score), N items, T positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from depthkit.utilization.sequences import IGNORED, Sequences
from depthkit.utilization.statistics import Array


class Row(NamedTuple):
    """A text whose probability is part of a choice's score."""

    context: tuple[int, ...]
    """Ids that are given, at least one."""
    continuation: tuple[int, ...]
    """Ids whose log probability counts."""
    sign: float = 1.0
    """1, or -1 for what is subtracted: the probability of the choice alone."""


@dataclass(frozen=True)
class Item:
    """A question: the rows that every choice's score adds up, and the choices that are right."""

    choices: tuple[tuple[Row, ...], ...]
    gold: frozenset[int]


@dataclass(frozen=True)
class Items:
    """The questions of one task."""

    task: str
    items: tuple[Item, ...]

    @property
    def rows(self) -> list[Row]:
        """The rows of all choices of all items, in order."""
        return [row for item in self.items for choice in item.choices for row in choice]

    @property
    def chance(self) -> float:
        """Accuracy of a guess."""
        return float(np.mean([len(item.gold) / len(item.choices) for item in self.items]))

    def sequences(self) -> Sequences:
        """All rows, one a window, scored where a continuation stands."""
        return padded([(row.context, row.continuation) for row in self.rows])

    def correct(self, log_likelihoods: Array) -> Array:
        """Whether each item's likeliest choice (the first of equal ones) is right: `[.., R]` -> `[.., N]`."""
        signed = log_likelihoods * np.array([row.sign for row in self.rows])
        start, found = 0, []
        for item in self.items:
            scores = []
            for choice in item.choices:
                scores.append(signed[..., start : start + len(choice)].sum(-1))
                start += len(choice)
            found.append(np.isin(np.stack(scores, -1).argmax(-1), list(item.gold)))
        return np.stack(found, -1).astype(np.float64)


def padded(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Sequences:
    """Contexts with their continuations as windows; only the continuations are scored.

    Args:
        pairs: (context, continuation) ids, each context at least one id.
    """
    longest = max(len(context) + len(continuation) for context, continuation in pairs) - 1
    shape = (len(pairs), max(1, longest))
    ids, targets = torch.zeros(shape, dtype=torch.int64), torch.full(shape, IGNORED)
    mask = torch.zeros(shape, dtype=torch.bool)
    for row, (context, continuation) in enumerate(pairs):
        whole = torch.tensor([*context, *continuation])
        length, start = max(1, len(whole) - 1), len(context) - 1
        ids[row, :length], mask[row, :length] = whole[:length], True
        targets[row, start : start + len(continuation)] = whole[len(context) :]
    return Sequences(ids, targets, mask)
