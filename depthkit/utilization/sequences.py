"""The token windows an evaluation reads.

Shapes: N sequences, T positions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
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
        facts: what a report says about them, such as the name of the text.
    """

    ids: Tensor
    targets: Tensor
    mask: Tensor
    documents: Tensor | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

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
    def of_batches(cls, batches: Iterable[Any]) -> Sequences:
        """From batches of data, which have `ids`, `targets` and `documents`."""
        parts = list(batches)
        documents = [batch.documents for batch in parts if batch.documents is not None]
        ids, targets = (torch.cat([getattr(batch, name) for batch in parts]) for name in ("ids", "targets"))
        return cls.of_targets(ids, targets, torch.cat(documents) if documents else None)

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

    def labelled(self, facts: Mapping[str, Any]) -> Sequences:
        """The same windows with facts for the report."""
        return replace(self, facts=facts)

    def bytes_scored(self, byte_lengths: Any) -> dict[str, int]:
        """`n_bytes_scored`, the bytes of text that the scored targets stand for; empty when none is known.

        Args:
            byte_lengths: [V] bytes of each id, as a tokenizer tells.
        """
        lengths = torch.as_tensor(byte_lengths, dtype=torch.int64)
        total = int(lengths[self.targets[self.scored].cpu()].sum())
        return {"n_bytes_scored": total} if total else {}

    def rows(self, rows: slice | Tensor, device: torch.device | None = None) -> Sequences:
        """Some of the windows, such as a micro-batch on `device`."""
        documents = None if self.documents is None else self.documents[rows].to(device)
        ids, targets, mask = (tensor[rows].to(device) for tensor in (self.ids, self.targets, self.mask))
        return replace(self, ids=ids, targets=targets, mask=mask, documents=documents)

    def describe(self) -> dict[str, Any]:
        """What identifies the data: sha256 of ids and targets, counts, window length, and the facts."""
        digest = hashlib.sha256()
        for tensor in (self.ids, self.targets):
            digest.update(str(list(tensor.shape)).encode())
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return dict(self.facts) | {
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
    if bool((sequences.mask[:, 1:] & ~sequences.mask[:, :-1]).any()):
        raise ValueError("sequences: padding must follow the tokens: later tokens would attend to it")
    if bool((sequences.scored & ~sequences.mask).any()):
        raise ValueError("sequences: a padded position has a target; mask it with -100")


def draw(sequences: Sequences, count: int, seed: int) -> Sequences:
    """A seeded choice of `count` different sequences, in their own order; all if there are fewer."""
    if len(sequences) <= count:
        return sequences
    chosen = (
        torch.randperm(len(sequences), generator=torch.Generator().manual_seed(seed))[:count].sort().values
    )
    return sequences.rows(chosen)


def with_bos(sequences: Sequences, bos: int) -> Sequences:
    """Every window opens with `bos`; one that did not is moved on by one, and loses its last token.

    What follows such a new bos is not scored: it is the middle of a text, which bos says nothing about.
    """
    moved = (sequences.ids[:, :1] != bos).expand_as(sequences.ids)

    def shift(tensor: Tensor, first: Any) -> Tensor:
        opening = torch.full_like(tensor[:, :1], first)
        return torch.where(moved, torch.cat([opening, tensor[:, :-1]], 1), tensor)

    documents = sequences.documents
    if documents is not None:
        documents = torch.where(moved, torch.cat([documents[:, :1], documents[:, :-1]], 1), documents)
    return replace(
        sequences,
        ids=shift(sequences.ids, bos),
        targets=shift(sequences.targets, IGNORED),
        mask=shift(sequences.mask, True),
        documents=documents,
    )
