"""The reference: one expert after the other, in any dtype.

Shapes: N tokens, k choices a token, E experts, D width, F hidden width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from depthkit.kernels.experts.feed_forward import feed_forward, matmul_dtype, sum_dtype


def compute(
    h: Tensor, index: Tensor, weights: Tensor, gate: Tensor | None, up: Tensor, down: Tensor
) -> Tensor:
    """Every expert on its tokens, in turn: `h [N, D] -> [N, D]`. Waits for the device once an expert.

    The stacked weights are unbound once: `w[e]` inside the loop would write a whole `[E, ...]` gradient each
    time.
    """
    dtype, total = matmul_dtype(h), sum_dtype(h)
    x, share = h.to(dtype), weights.to(total)
    y = h.new_zeros(h.shape, dtype=total)
    ups, downs = up.to(dtype).unbind(0), down.to(dtype).unbind(0)
    gates = [None] * len(ups) if gate is None else gate.to(dtype).unbind(0)
    for e, matrices in enumerate(zip(gates, ups, downs, strict=True)):
        token, choice = torch.where(index == e)
        out = feed_forward(x[token], *matrices, F.linear)
        y = y.index_add(0, token, out.to(total) * share[token, choice, None])
    return y.to(h.dtype)
