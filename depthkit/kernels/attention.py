"""One `attend` with the same semantics on every backend.

Shapes: B batch, T time, H heads, K key/value heads (H is a multiple of K), C head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from depthkit.registry import unknown

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool, float], Tensor]


def attention_mask(
    time: int, causal: bool, window: int | None, documents: Tensor | None, device: torch.device
) -> Tensor | None:
    """True where a query (row) may see a key (column): `[1 or B, 1, T, T]`; None where `causal` says it all.

    Args:
        window: a query sees keys less than `window` positions away (itself included).
        documents: `[B, T]` document ids; attention stays within a document.
    """
    if (window is None or window >= time) and documents is None:
        return None
    row = torch.arange(time, device=device)[:, None]
    column = torch.arange(time, device=device)[None, :]
    mask = (column <= row) if causal else torch.ones(time, time, dtype=torch.bool, device=device)
    if window is not None:
        mask = mask & ((row - column).abs() < window)
    mask = mask[None, None]
    if documents is not None:
        mask = mask & (documents[:, None, :, None] == documents[:, None, None, :])
    return mask


def attention_probabilities(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    """Softmax of the scores, fp32: q `[B, H, T, C]`, k `[B, K, T, C]` -> `[B, H, T, T]`."""
    batch, heads, time, width = q.shape
    grouped = q.reshape(batch, k.shape[1], -1, time, width)
    scores = (grouped @ k[:, :, None].transpose(-1, -2)).reshape(batch, heads, time, time).float() * scale
    if mask is None and causal:
        mask = torch.ones(time, time, dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1)


def _eager(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    batch, time = q.shape[0], q.shape[2]
    weights = attention_probabilities(q, k, mask, causal, scale).to(v.dtype)
    return (weights.reshape(batch, v.shape[1], -1, time, time) @ v[:, :, None]).reshape(q.shape)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        is_causal=causal and mask is None,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )


BACKENDS: dict[str, Attend] = {"eager": _eager, "sdpa": _sdpa}
"""`eager` forms the probabilities (for probes and references), `sdpa` is torch's fused attention."""


def backend(name: str) -> Attend:
    """The attention function `(q, k, v, mask, causal, scale) -> [B, H, T, C]`; `auto` is the fastest here.

    Raises:
        ValueError: unknown name.
    """
    choice = "sdpa" if name == "auto" else name
    if choice not in BACKENDS:
        raise ValueError(unknown("attention backend", name, ["auto", *BACKENDS]))
    return BACKENDS[choice]
