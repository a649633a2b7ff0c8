"""Causal attention in blocks of rows, for training on CPUs.

A block of queries sees the keys up to its own end only, so nearly half of the scores are never computed.
Everything is fp32 inside, also for bf16 inputs: products this small are not faster in bf16, and nothing is
rounded on the way. What a softmax has before it is divided by its sum is kept for the backward pass, and the
division is made where the numbers are few.

Shapes: B batch, T positions, H heads, K key/value heads, G = H / K, C head_dim, R rows of a block, E its end.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from depthkit.kernels.attention.base import ATTENTION, Backend, Request

ROWS, BLOCKS = 64, 8
"""Queries of a block: so many, or as many times that as give no more than so many blocks."""
LONGEST = 512
"""Positions up to which `auto` takes it. Beyond, it gains little over torch's fused kernel, and what it keeps
grows with their square: at 512 positions half of what else a layer keeps, with 32 channels a head."""


class Strip(NamedTuple):
    """Pattern: `[R, T + R]` fp32, -inf where column j of row i is beyond T + i, else 0.

    T - start columns from the left lies what is added to the scores of the block that starts there.
    """

    bias: Tensor


@ATTENTION.register("rows")
class Rows(Backend):
    """Blocks of rows: what `auto` trains with on CPUs in bf16, and in fp32 where it is compiled."""

    priority = 20

    @staticmethod
    def refuses(request: Request) -> str | None:
        """Plain causal attention on a CPU, in fp32, is all it does."""
        if request.device.type != "cpu":
            return "it is for CPUs"
        if request.dtype == torch.float64:
            return "it computes in fp32"
        if not request.causal or request.masked or request.queries != request.keys:
            return "it does plain causal attention over whole windows only"
        return None

    @staticmethod
    def defers(request: Request) -> str | None:
        """Torch's fused kernel is faster without a backward pass, in eager fp32, and over long windows."""
        if not request.grad:
            return "it gains in training only"
        if request.dtype != torch.bfloat16 and not request.compiled:
            return "it gains in bf16 or compiled only"
        return f"it pays up to {LONGEST} positions only" if request.keys > LONGEST else None

    @staticmethod
    def prepare(request: Request) -> Strip:
        """The strip of these windows."""
        time, size = request.keys, _block_rows(request.keys)
        strip = torch.full((size, time + size), -math.inf, device=request.device)
        return Strip(strip.triu(time + 1))

    @staticmethod
    def attend(q: Tensor, k: Tensor, v: Tensor, pattern: Strip, scale: float) -> Tensor:
        """See `Backend.attend`."""
        return _RowBlocks.apply(q, k, v, pattern.bias, scale)


def _block_rows(time: int) -> int:
    return ROWS * max(1, math.ceil(time / (ROWS * BLOCKS)))


def _blocks(time: int) -> list[tuple[int, int]]:
    size = _block_rows(time)
    return [(start, min(start + size, time)) for start in range(0, time, size)]


class _RowBlocks(torch.autograd.Function):
    """Query heads that share keys lie together row by row, `[B K, T, G, C]`: a block of rows is one slice."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
        groups, time = q.shape[1] // k.shape[1], q.shape[2]
        queries = (_by_row(q, groups).float() * scale).contiguous()
        keys, values = (x.flatten(0, 1).float() for x in (k, v))
        kept, inverses, outs = [], [], []
        with torch.autocast("cpu", enabled=False):
            for start, end in _blocks(time):
                scores = _product(queries[:, start:end], keys[:, :end].transpose(1, 2))
                scores.add_(bias[: end - start, None, time - start : time - start + end])
                weights = scores.sub_(scores.amax(-1, keepdim=True)).exp_()
                inverse = weights.sum(-1, keepdim=True).reciprocal_()
                outs.append(_product(weights, values[:, :end]).mul_(inverse))
                inverses.append(inverse)
                kept.append(weights)
        out = torch.cat(outs, 1)
        ctx.save_for_backward(queries, keys, values, out, torch.cat(inverses, 1), *kept)
        ctx.scale = scale
        return _by_head(out, q)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        queries, keys, values, out, inverses, *kept = ctx.saved_tensors
        groups, heads = queries.shape[2], (len(grad), -1)
        upstream = _by_row(grad, groups).float() * inverses
        inner = (upstream * out).sum(-1, keepdim=True)
        d_queries, d_keys, d_values = [], [], []
        with torch.autocast("cpu", enabled=False):
            for (start, end), weights in zip(_blocks(grad.shape[2]), kept, strict=True):
                above = upstream[:, start:end]
                d_values.append(_outer(weights, above))
                slope = _product(above, values[:, :end].transpose(1, 2)).sub_(inner[:, start:end])
                d_scores = slope.mul_(weights)
                d_queries.append(_product(d_scores, keys[:, :end]))
                d_keys.append(_outer(d_scores, queries[:, start:end]))
        d_q = _by_head(torch.cat(d_queries, 1).mul_(ctx.scale), grad)
        d_k, d_v = (_total(parts).unflatten(0, heads).to(grad.dtype) for parts in (d_keys, d_values))
        return d_q, d_k, d_v, None, None


def _product(rows: Tensor, matrix: Tensor) -> Tensor:
    """`[B K, R, G, X]` by `[B K, X, Y]`: `[B K, R, G, Y]`."""
    return rows.flatten(1, 2).bmm(matrix).unflatten(1, rows.shape[1:3])


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """`[B K, R, G, X]` and `[B K, R, G, Y]`: the sum over rows and groups, `[B K, X, Y]`."""
    return left.flatten(1, 2).transpose(1, 2).bmm(right.flatten(1, 2))


def _total(parts: list[Tensor]) -> Tensor:
    """The sum of what blocks add to the first E positions, each more of them than the one before."""
    *shorter, whole = parts
    for part in shorter:
        whole[:, : part.shape[1]].add_(part)
    return whole


def _by_row(x: Tensor, groups: int) -> Tensor:
    """`[B, H, T, C] -> [B K, T, G, C]`: a row's query heads side by side."""
    return x.unflatten(1, (-1, groups)).transpose(2, 3).flatten(0, 1)


def _by_head(x: Tensor, like: Tensor) -> Tensor:
    """Back to `[B, H, T, C]`, in the dtype of `like`."""
    return x.unflatten(0, (len(like), -1)).transpose(2, 3).reshape(like.shape).to(like.dtype)
