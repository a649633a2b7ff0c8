"""Dense masks, and the probabilities they lead to: for `eager`, `sdpa` and probes.

Shapes: B batch, T queries, S keys, H heads, K key/value heads, C head_dim.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from depthkit.kernels.attention.base import Request


class Dense(NamedTuple):
    """Pattern of the dense backends."""

    mask: Tensor | None
    """True where a query (row) may see a key (column), `[1 or B, 1, T, S]`; None if `causal` says it all."""
    causal: bool
    """Without a mask: whether plain causal attention over T = S positions is meant, or all is seen."""


def dense(request: Request) -> Dense:
    """The pattern of a request, without a mask where none is needed."""
    mask = attention_mask(request)
    return Dense(mask, request.causal and mask is None and request.queries == request.keys)


def attention_mask(request: Request) -> Tensor | None:
    """True where a query may see a key, `[1 or B, 1, T, S]`; None for plain causal, full, one last query."""
    queries, keys, device = request.queries, request.keys, request.device
    if not request.masked and (not request.causal or queries in (1, keys)):
        return None
    row = torch.arange(request.start, keys, device=device)[:, None]
    column = torch.arange(keys, device=device)[None, :]
    mask = (column <= row) if request.causal else torch.ones(queries, keys, dtype=torch.bool, device=device)
    if request.window is not None:
        mask = mask & ((row - column).abs() < request.window)
    mask = mask[None, None]
    if request.documents is not None:
        own = request.documents[:, request.start :]
        mask = mask & (own[:, None, :, None] == request.documents[:, None, None, :])
    return mask


def attention_probabilities(q: Tensor, k: Tensor, pattern: Dense, scale: float) -> Tensor:
    """Softmax of the scores, fp32: q `[B, H, T, C]`, k `[B, K, S, C]` -> `[B, H, T, S]`."""
    batch, heads, queries, width = q.shape
    grouped = q.reshape(batch, k.shape[1], -1, queries, width)
    scores = (grouped @ k[:, :, None].transpose(-1, -2)).reshape(batch, heads, queries, -1).float() * scale
    mask = pattern.mask
    if mask is None and pattern.causal:
        mask = torch.ones(queries, k.shape[2], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1)
