"""The default: rows sorted by expert and torch's grouped matrix product. Dropless, without padding of groups.

Shapes: N tokens, k choices a token, M = N k rows, E experts, D width, F hidden width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from depthkit.kernels.experts.feed_forward import feed_forward, matmul_dtype, refuse_float64
from depthkit.kernels.experts.grouped_mm import implementation, linear
from depthkit.kernels.experts.rows import combine, copies, sort_by_expert


def compute(
    h: Tensor, index: Tensor, weights: Tensor, gate: Tensor | None, up: Tensor, down: Tensor
) -> Tensor:
    """All experts in three grouped matrix products: `h [N, D] -> [N, D]`.

    Raises:
        ValueError: float64 input, or a torch without a grouped matrix product.
    """
    refuse_float64("grouped", h)
    if implementation() is None:
        raise ValueError(f"torch {torch.__version__} has no grouped_mm; use the 'loop' expert backend")
    sorting = sort_by_expert(index, up.shape[0])
    x = copies(h.to(matmul_dtype(h)), index.shape[1], sorting)
    y = feed_forward(x, gate, up, down, lambda rows, weight: linear(rows, weight, sorting.ends))
    return combine(y, weights, sorting, h)
