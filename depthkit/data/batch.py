"""One micro-batch.

Shapes: B sequences, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NOT_SCORED = -100
"""Target of a position whose prediction is not scored; torch's cross-entropy ignores it by default."""


@dataclass(frozen=True)
class Batch:
    """Token windows and what each position should predict."""

    ids: Tensor
    """[B, T] int64 token ids; 0 where the last window is padded."""
    targets: Tensor
    """[B, T] int64 next ids; -100 where nothing is scored."""
    documents: Tensor | None
    """[B, T] int64 document number within each window, -1 on padding; None without a document mask."""
    num_bytes: int
    """Bytes of text the scored targets stand for; 0 when the tokenizer cannot tell."""
    loops: int | None = None
    """How many loops every looped segment is to run on this batch; None leaves it to the model."""

    @property
    def num_scored(self) -> int:
        """How many targets are scored."""
        return int((self.targets != NOT_SCORED).sum())

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        documents = None if self.documents is None else self.documents.to(device, non_blocking=True)
        return replace(
            self,
            ids=self.ids.to(device, non_blocking=True),
            targets=self.targets.to(device, non_blocking=True),
            documents=documents,
        )


def make_batch(
    windows: NDArray[np.int64],
    documents: NDArray[np.int64],
    byte_lengths: NDArray[np.int64],
    document_mask: bool,
    scored: NDArray[np.bool_] | None = None,
) -> Batch:
    """Split windows into inputs and targets.

    Args:
        windows: [B, T + 1] token ids; -100 after the end of the text.
        documents: [B, T] document number of each input position.
        byte_lengths: [V] bytes that each id stands for.
        document_mask: whether the batch carries `documents`.
        scored: [B, T + 1] which tokens are scored as targets; None is all of the text.
    """
    ids, targets = windows[:, :-1], windows[:, 1:]
    if scored is not None:
        targets = np.where(scored[:, 1:], targets, NOT_SCORED)
    return Batch(
        ids=torch.from_numpy(np.where(ids == NOT_SCORED, 0, ids)),
        targets=torch.from_numpy(targets.copy()),
        documents=torch.from_numpy(documents) if document_mask else None,
        num_bytes=int(byte_lengths[targets[targets != NOT_SCORED]].sum()),
    )
