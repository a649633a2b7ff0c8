"""A rank's part of a batch: a contiguous slice of its sequences.

Every rank draws the same global batch, so the order of the data, and how many tokens a step scores, are known
everywhere without a word.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from depthkit.data import Batch
from depthkit.data.batch import NOT_SCORED
from depthkit.training.parallel.ranks import Ranks


class Share(NamedTuple):
    """One micro-batch as a rank sees it."""

    batch: Batch
    """This rank's sequences."""
    own: int
    """Targets scored in them."""
    scored: int
    """Targets scored in the whole micro-batch."""
    rows: tuple[int, int]
    """Number of the first sequence, and of all sequences of the micro-batch."""


def share(batch: Batch, ranks: Ranks, device: torch.device) -> Share:
    """The slice of `batch [B, T]` that belongs to this rank, on `device`; B is a multiple of the ranks."""
    total, scored = len(batch.ids), batch.num_scored
    if ranks.size == 1:
        return Share(batch.to(device), scored, scored, (0, total))
    size, rest = divmod(total, ranks.size)
    assert rest == 0, f"{total} sequences among {ranks.size} ranks"
    part = _rows(batch, ranks.rank * size, size)
    return Share(part.to(device), part.num_scored, scored, (ranks.rank * size, total))


def held_out_share(batch: Batch, ranks: Ranks) -> Batch:
    """This rank's slice of a batch of any size, filled up with sequences in which nothing is scored."""
    if ranks.size == 1:
        return batch
    size = -(-len(batch.ids) // ranks.size)
    missing = size * ranks.size - len(batch.ids)
    nothing = torch.full_like(batch.targets[:1], NOT_SCORED)
    filled = replace(
        batch,
        ids=_repeated(batch.ids, missing),
        targets=torch.cat([batch.targets, nothing.expand(missing, -1)]),
        documents=None if batch.documents is None else _repeated(batch.documents, missing),
    )
    return _rows(filled, ranks.rank * size, size)


def _repeated(tensor: Tensor, count: int) -> Tensor:
    return torch.cat([tensor, tensor[-1:].expand(count, -1)])


def _rows(batch: Batch, start: int, count: int) -> Batch:
    documents = None if batch.documents is None else batch.documents[start : start + count]
    return replace(
        batch,
        ids=batch.ids[start : start + count],
        targets=batch.targets[start : start + count],
        documents=documents,
    )
