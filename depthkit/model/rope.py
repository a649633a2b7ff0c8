"""Rotary position embedding, arXiv 2104.09864, in the rotate-half layout (Hugging Face's channel order)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rotary(NamedTuple):
    """Tables `[T, C]`, fp32: cosines, and sines with the sign that a half turn of the channels needs."""

    cos: Tensor
    sin: Tensor


def rotary_tables(time: int, head_dim: int, base: float, device: torch.device, start: int = 0) -> Rotary:
    """Tables of `time` positions from `start`; channels i and i + C/2 turn by position * base^(-2i / C)."""
    frequency = base ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    position = torch.arange(start, start + time, device=device, dtype=torch.float32)
    angle = position[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    return Rotary(torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1))


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotate `x [..., T, C]` by its position; computed in fp32, returned in x's dtype."""
    swapped = x.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(x * rotary.cos, swapped, rotary.sin).to(x.dtype)
