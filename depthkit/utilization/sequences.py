"""The token windows an evaluation reads.

Shapes: N sequences, T positions.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

IGNORED = -100


@dataclass(frozen=True)
class Sequences:
    """Windows of tokens, what each position should predict, and which positions are real.

    Attributes:
        ids: [N, T] int64.
        targets: [N, T] int64; -100 where a position is not scored.
        mask: [N, T] bool; False on padding, which no metric reads.
        documents: [N, T] int64 document numbers for models with a document mask, or None.
    """

    ids: Tensor
    targets: Tensor
    mask: Tensor
    documents: Tensor | None = None

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def of(cls, value: Any) -> Sequences:
        """From `[N, T+1]` token ids (next-token targets), `(ids, targets, mask)`, or `Sequences`.

        Raises:
            ValueError: shapes or types that do not fit.
        """
        if isinstance(value, Sequences):
            return value
        if isinstance(value, Tensor):
            return cls._of_windows(value)
        if isinstance(value, tuple) and len(value) == 3:
            ids, targets, mask = value
            return cls(ids, torch.where(mask, targets, IGNORED), mask)
        raise ValueError("sequences: give token ids [N, T+1], a tuple (ids, targets, mask), or Sequences")

    @classmethod
    def of_targets(cls, ids: Tensor, targets: Tensor, documents: Tensor | None = None) -> Sequences:
        """From [N, T] ids and targets alone: what follows a row's last target is padding."""
        scored = (targets != IGNORED).long()
        return cls(ids, targets, scored.flip(1).cumsum(1).flip(1) > 0, documents)

    @classmethod
    def _of_windows(cls, windows: Tensor) -> Sequences:
        if windows.ndim != 2 or windows.shape[1] < 2:
            raise ValueError(f"sequences: token ids must be [N, T+1] with T >= 1, not {list(windows.shape)}")
        ids, targets = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
        return cls(ids, targets, torch.ones_like(ids, dtype=torch.bool))

    @property
    def scored(self) -> Tensor:
        """[N, T] bool: positions whose prediction counts."""
        return self.targets != IGNORED

    @property
    def num_scored(self) -> int:
        """Number of scored tokens."""
        return int(self.scored.sum())

    def __len__(self) -> int:
        return self.ids.shape[0]

    def rows(self, rows: slice, device: torch.device) -> Sequences:
        """A micro-batch on `device`."""
        documents = None if self.documents is None else self.documents[rows].to(device)
        ids, targets, mask = (tensor[rows].to(device) for tensor in (self.ids, self.targets, self.mask))
        return Sequences(ids, targets, mask, documents)

    def describe(self) -> dict[str, Any]:
        """What identifies the data: sha256 of ids and targets, counts, window length."""
        digest = hashlib.sha256()
        for tensor in (self.ids, self.targets):
            digest.update(str(list(tensor.shape)).encode())
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return {
            "sha256": digest.hexdigest(),
            "n_seq": len(self),
            "seq_len": self.ids.shape[1],
            "n_tokens_scored": self.num_scored,
        }


def _check(sequences: Sequences) -> None:
    ids = sequences.ids
    if ids.ndim != 2 or ids.dtype != torch.int64:
        raise ValueError(f"sequences: ids must be int64 [N, T], not {ids.dtype} {list(ids.shape)}")
    for name in ("targets", "mask", "documents"):
        tensor = getattr(sequences, name)
        if tensor is not None and tensor.shape != ids.shape:
            raise ValueError(f"sequences: {name} has shape {list(tensor.shape)}, ids {list(ids.shape)}")
    if sequences.mask.dtype != torch.bool:
        raise ValueError(f"sequences: mask must be bool, not {sequences.mask.dtype}")
    if bool((sequences.scored & ~sequences.mask).any()):
        raise ValueError("sequences: a padded position has a target; mask it with -100")


def draw(sequences: Sequences, count: int, seed: int) -> Sequences:
    """A seeded choice of `count` different sequences, in their own order; all if there are fewer."""
    if len(sequences) <= count:
        return sequences
    chosen = (
        torch.randperm(len(sequences), generator=torch.Generator().manual_seed(seed))[:count].sort().values
    )
    documents = None if sequences.documents is None else sequences.documents[chosen]
    return Sequences(sequences.ids[chosen], sequences.targets[chosen], sequences.mask[chosen], documents)
