"""How rows move to their experts and back, in a fixed order both ways.

Rows are moved by permutations, whose derivative is the permutation back: no two rows meet, so every sum has a
fixed order, forward and backward.

Shapes: N tokens, k choices a token, M = N k rows, E experts, D width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from depthkit.kernels.experts.feed_forward import sum_dtype


class Sorting(NamedTuple):
    """Rows sorted by expert."""

    order: Tensor
    """`[M]`: row `order[i]` of the flattened choices goes to place i."""
    inverse: Tensor
    """`[M]`: row j is found again at place `inverse[j]`."""
    ends: Tensor
    """`[E]` int32: expert e owns the places `ends[e-1]:ends[e]`."""


def sort_by_expert(index: Tensor, num_experts: int) -> Sorting:
    """How the choices `index [N, k]` are sorted: stably, and waiting for no device, as `bincount` would."""
    experts, order = index.flatten().sort(stable=True)
    ends = torch.searchsorted(
        experts, torch.arange(num_experts, device=index.device), right=True, out_int32=True
    )
    places = torch.arange(order.shape[0], device=index.device)
    return Sorting(order, torch.empty_like(order).scatter(0, order, places), ends)


def copies(h: Tensor, top_k: int, sorting: Sorting) -> Tensor:
    """The k copies of every token of `h [N, D]`, sorted: `[M, D]`."""
    tokens, width = h.shape
    repeated = h[:, None].expand(tokens, top_k, width).reshape(-1, width)
    return _permuted(repeated, sorting.order, sorting.inverse)


def combine(y: Tensor, weights: Tensor, sorting: Sorting, h: Tensor) -> Tensor:
    """Sum the sorted rows `y [M, D]` of every token, weighted by `weights [N, k]`: `[N, D]`, as `h` is.

    In fp32, in the order of the choices.
    """
    y = _permuted(y, sorting.inverse, sorting.order)
    y = y.view(*weights.shape, h.shape[1]).to(sum_dtype(h))
    return (y * weights.to(y.dtype)[..., None]).sum(1).to(h.dtype)


def _permuted(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    if torch.compiler.is_compiling():
        return x.index_select(0, order)
    return _Permuted.apply(x, order, inverse)


class _Permuted(torch.autograd.Function):
    """`x.index_select(0, order)`, whose own derivative would add rows to zeros, which is slow in bf16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(order, inverse)
        return x.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        order, inverse = ctx.saved_tensors
        return _Permuted.apply(grad, inverse, order), None, None
