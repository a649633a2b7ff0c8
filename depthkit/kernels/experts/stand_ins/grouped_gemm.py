"""The two functions of the package `grouped_gemm` that MegaBlocks calls, over torch's grouped matrix product.

`ops.gmm` is differentiable; `backend.gmm` also takes `trans_a` and an output `c`. Batch sizes may lie on any
device.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from depthkit.kernels.experts.grouped_mm import grouped_linear, grouped_outer


def _ends(batch_sizes: Tensor, like: Tensor) -> Tensor:
    return batch_sizes.to(like.device).cumsum(0).to(torch.int32)


def _gmm(a: Tensor, b: Tensor, batch_sizes: Tensor, trans_b: bool = False) -> Tensor:
    """Rows of `a [M, K]` times their expert's `b [E, K, N]`, or `b [E, N, K]` with `trans_b`: `[M, N]`."""
    return grouped_linear(a, b if trans_b else b.transpose(1, 2), _ends(batch_sizes, a))


def _backend_gmm(
    a: Tensor,
    b: Tensor,
    batch_sizes: Tensor,
    trans_a: bool = False,
    trans_b: bool = False,
    c: Tensor | None = None,
) -> Tensor:
    """As `ops.gmm`; with `trans_a`, `a[rows]^T @ b[rows]` for each expert: `[M, N], [M, K] -> [E, N, K]`."""
    out = grouped_outer(a, b, _ends(batch_sizes, a)) if trans_a else _gmm(a, b, batch_sizes, trans_b)
    return out if c is None else c.copy_(out)


ops = SimpleNamespace(gmm=_gmm)
backend = SimpleNamespace(gmm=_backend_gmm)
