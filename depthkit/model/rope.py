"""Rotary position embedding, arXiv 2104.09864, in the rotate-half layout (Hugging Face's channel order)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rotary(NamedTuple):
    """Tables `[T, C]`, fp32; the second half of the channels repeats the first."""

    cos: Tensor
    sin: Tensor


def rotary_tables(time: int, head_dim: int, base: float, device: torch.device) -> Rotary:
    """Tables for positions 0..time-1; channel pair i turns by position * base^(-2i / head_dim)."""
    frequency = base ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angle = torch.arange(time, device=device, dtype=torch.float32)[:, None] * frequency
    angle = torch.cat([angle, angle], dim=-1)
    return Rotary(angle.cos(), angle.sin())


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotate `x [..., T, C]` by its position; computed in fp32, returned in x's dtype."""
    low, high = x.chunk(2, dim=-1)
    turned = torch.cat([-high, low], dim=-1)
    return (x * rotary.cos + turned * rotary.sin).to(x.dtype)
