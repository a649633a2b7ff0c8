"""The default: rows sorted by expert and torch's grouped matrix product. Dropless, without padding of groups.

Shapes: N tokens, k choices a token, M = N k rows, E experts, D width, F hidden width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from depthkit.kernels.experts.feed_forward import feed_forward, matmul_dtype, refuse_float64, sum_dtype
from depthkit.kernels.experts.grouped_mm import grouped_linear, implementation


def sort_by_expert(index: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """How rows move: `index [N, k] -> (order [M], inverse [M], ends [E] int32)`.

    Row `order[i]` of the flattened choices goes to place i, row j is found again at place `inverse[j]`, and
    expert e owns the places `ends[e-1]:ends[e]`. Stable, and nothing waits for the device (`bincount` would).
    """
    experts, order = index.flatten().sort(stable=True)
    ends = torch.searchsorted(
        experts, torch.arange(num_experts, device=index.device), right=True, out_int32=True
    )
    places = torch.arange(order.shape[0], device=index.device)
    return order, torch.empty_like(order).scatter(0, order, places), ends


def compute(
    h: Tensor, index: Tensor, weights: Tensor, gate: Tensor | None, up: Tensor, down: Tensor
) -> Tensor:
    """All experts in three grouped matrix products: `h [N, D] -> [N, D]`.

    Rows are moved by permutations of the k copies of each token: no two rows meet, so every sum has a fixed
    order, forward and backward.

    Raises:
        ValueError: float64 input, or a torch without a grouped matrix product.
    """
    refuse_float64("grouped", h)
    if implementation() is None:
        raise ValueError(f"torch {torch.__version__} has no grouped_mm; use the 'loop' expert backend")
    tokens, width = h.shape
    order, inverse, ends = sort_by_expert(index, up.shape[0])
    copies = h.to(matmul_dtype(h))[:, None].expand(tokens, index.shape[1], width).reshape(-1, width)
    y = feed_forward(
        copies.index_select(0, order), gate, up, down, lambda x, weight: grouped_linear(x, weight, ends)
    )
    y = y.index_select(0, inverse).view(*index.shape, width).to(sum_dtype(h))
    return (y * weights.to(y.dtype)[..., None]).sum(1).to(h.dtype)
