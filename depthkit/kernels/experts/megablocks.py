"""MegaBlocks' grouped dropless path behind depthkit's router (arXiv:2211.15841).

Its sort, histogram, gather and scatter, and grouped_gemm's matrix product, on depthkit's stacked weights.
`parts` says which of these are MegaBlocks' own here.

Shapes: N tokens, k choices a token, M = N k rows, E experts, D width, F hidden width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from depthkit.kernels.experts.feed_forward import feed_forward, matmul_dtype, refuse_float64, sum_dtype
from depthkit.kernels.experts.parts import PAGE, Parts, load


def _ready(h: Tensor) -> Parts:
    parts = load()
    if h.device.type == "cpu" and not parts.interpreted:
        raise ValueError(
            "the 'megablocks' expert backend runs Triton kernels, which want a GPU: on the CPU they run only "
            f"in Triton's interpreter, with TRITON_INTERPRET=1 set before the program starts (see {PAGE})"
        )
    return parts


@torch.no_grad()
def _bins(ops: Any, index: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`index [N, k]` -> origin and expert of each sorted row `[M]`, end and size of each expert `[E]`."""
    experts = index.flatten().int()
    bin_ids, origin = ops.sort(experts, max(1, (num_experts - 1).bit_length()))
    sizes = ops.histogram(experts, num_experts)
    return origin, bin_ids, ops.inclusive_cumsum(sizes, 0).view(-1), sizes.long()


def compute(
    h: Tensor, index: Tensor, weights: Tensor, gate: Tensor | None, up: Tensor, down: Tensor
) -> Tensor:
    """All experts through MegaBlocks' kernels: `h [N, D] -> [N, D]`.

    Autocast is off inside: casts are explicit, so that the contributions are scattered and summed in fp32.

    Raises:
        ValueError: float64 input, MegaBlocks absent or broken, or CPU tensors outside Triton's interpreter.
    """
    refuse_float64("megablocks", h)
    parts, dtype, top_k = _ready(h), matmul_dtype(h), index.shape[1]
    with torch.autocast(h.device.type, enabled=False):
        origin, bin_ids, bins, sizes = _bins(parts.ops, index, up.shape[0])
        sizes = sizes.cpu() if parts.counts_on_host else sizes
        x = parts.ops.gather(h.to(dtype).contiguous(), origin, bin_ids, bins, top_k)
        y = feed_forward(
            x, gate, up, down, lambda rows, weight: parts.gmm(rows, weight.to(dtype), sizes, trans_b=True)
        )
        share = weights.to(sum_dtype(h)).flatten()
        return parts.ops.scatter(y.to(share.dtype), origin, bin_ids, share, bins, top_k).to(h.dtype)
