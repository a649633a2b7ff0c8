"""Random choices that belong to a sequence: the same whatever the micro-batch, the order or the padding.

Shapes: B sequences of a micro-batch, N sequences, T positions, D width, M probes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from depthkit.utilization.sequences import Sequences


def fingerprints(sequences: Sequences, seed: int) -> list[int]:
    """A 56-bit seed for every sequence, made of its real tokens and `seed`."""
    ids, mask = sequences.ids.cpu().numpy(), sequences.mask.cpu().numpy()
    return [_digest(row[real].tobytes(), seed) for row, real in zip(ids, mask, strict=True)]


def _digest(tokens: bytes, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:".encode() + tokens).digest()[:7], "big")


def halves(sequences: Sequences, seed: int) -> NDArray[np.bool_]:
    """`[N]` True for one half of the sequences, False for the other; equal sequences are on the same side."""
    distinct, which = np.unique(fingerprints(sequences, seed), return_inverse=True)
    return which < len(distinct) // 2


def choose_tokens(sequences: Sequences, most: int, seed: int) -> Tensor:
    """`[N, T]` bool: `most` of the real tokens, each as likely as any other; all if there are fewer."""
    mask = sequences.mask.cpu()
    if int(mask.sum()) <= most:
        return mask
    keys = torch.full(mask.shape, torch.inf, dtype=torch.float64)
    for row, own in enumerate(fingerprints(sequences, seed)):
        count = int(mask[row].sum())
        keys[row, mask[row]] = torch.rand(count, generator=_generator(own), dtype=torch.float64)
    return keys <= keys.flatten().kthvalue(most).values


def rademacher(seeds: Sequence[int], mask: Tensor, width: int, count: int) -> Tensor:
    """`[M, B, T, D]`: +1 or -1 on real positions, 0 on padding; `count` is M."""
    found = torch.zeros(count, *mask.shape, width)
    for row, own in enumerate(seeds):
        real = mask[row].cpu()
        bits = torch.randint(0, 2, (int(real.sum()), count, width), generator=_generator(own))
        found[:, row, real] = bits.transpose(0, 1) * 2.0 - 1.0
    return found.to(mask.device)


def single_tokens(seeds: Sequence[int], mask: Tensor, count: int) -> Tensor:
    """`[M, B, T]` bool: one real position of every sequence, drawn `count` = M times."""
    found = torch.zeros(count, *mask.shape, dtype=torch.bool)
    for row, own in enumerate(seeds):
        real = mask[row].cpu().nonzero()[:, 0]
        if len(real):
            drawn = real[torch.randint(0, len(real), (count,), generator=_generator(own + 1))]
            found[torch.arange(count), row, drawn] = True
    return found.to(mask.device)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
