"""The seven functions of MegaBlocks' compiled extension `megablocks_ops`, in plain torch on any device.

Same arguments and results as the extension of MegaBlocks 0.10; most write into tensors that the caller
allocated. None waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sort(x: Tensor, end_bit: int, x_out: Tensor, iota_out: Tensor) -> None:
    """Sorted keys into `x_out`, where each came from into `iota_out`; stable, by all bits of the keys."""
    values, order = x.sort(stable=True)
    x_out.copy_(values)
    iota_out.copy_(order)


def histogram(x: Tensor, num_bins: int) -> Tensor:
    """How often each of `0 .. num_bins - 1` occurs in `x`, int32."""
    ends = torch.searchsorted(x.sort().values, _range(num_bins, x), right=True, out_int32=True)
    return ends.diff(prepend=ends.new_zeros(1))


def inclusive_cumsum(x: Tensor, dim: int, out: Tensor) -> None:
    """Cumulative sum along `dim`, each entry included."""
    out.copy_(x.cumsum(dim))


def exclusive_cumsum(x: Tensor, dim: int, out: Tensor) -> None:
    """Cumulative sum along `dim` of what stands before each entry."""
    out.copy_(x.cumsum(dim) - x)


def indices(padded_bins: Tensor, block_size: int, block_rows: int, block_columns: int, out: Tensor) -> None:
    """Column block of every block of the block-diagonal matrix, row by row.

    Expert e owns the block rows up to `padded_bins[e] / block_size` and columns from `e * block_columns`.
    """
    rows, columns = _range(block_rows, padded_bins), _range(block_columns, padded_bins)
    expert = torch.searchsorted(padded_bins // block_size, rows, right=True)
    out.copy_((expert[:, None] * block_columns + columns).flatten())


def replicate_forward(x: Tensor, bins: Tensor, out: Tensor) -> None:
    """`out[:, i] = x[:, b]` for the bin b that holds i: `x [B, bins]`, `out [B, bins[-1]]`."""
    out.copy_(x[:, _bin_of(bins, out.shape[1])])


def replicate_backward(grad: Tensor, bins: Tensor, out: Tensor) -> None:
    """`out[:, b]` = the sum of `grad` over bin b."""
    out.zero_().index_add_(1, _bin_of(bins, grad.shape[1]), grad)


def _bin_of(bins: Tensor, length: int) -> Tensor:
    return torch.searchsorted(bins, _range(length, bins), right=True)


def _range(length: int, like: Tensor) -> Tensor:
    return torch.arange(length, dtype=like.dtype, device=like.device)
