"""Causal attention in blocks of rows, for training in bf16 on CPUs.

A block of queries sees the keys up to its own end only, so nearly half of the scores are never computed.
Scores and softmax are fp32; the probabilities are kept for the backward pass.

Shapes: B batch, T positions, H heads, K key/value heads, C head_dim, R rows of a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from depthkit.kernels.attention.base import ATTENTION, Backend, Request

ROWS = 64
"""Queries in a block at most: fewer save more scores, more make larger matrix products."""
CACHE = 2**20
"""Bytes of fp32 scores that a block should not exceed; half as many rows are taken where it would."""


class Triangle(NamedTuple):
    """Pattern: what is added to the scores of the last R keys of a block, `[R, R]` fp32."""

    bias: Tensor


@ATTENTION.register("rows")
class Rows(Backend):
    """Blocks of rows: what `auto` trains with in bf16 on CPUs."""

    priority = 20

    @staticmethod
    def refuses(request: Request) -> str | None:
        """Plain causal attention on a CPU is all it does."""
        if request.device.type != "cpu":
            return "it is for CPUs"
        if not request.causal or request.masked or request.queries != request.keys:
            return "it does plain causal attention over whole windows only"
        return None

    @staticmethod
    def defers(request: Request) -> str | None:
        """Torch's fused kernel is as fast in fp32, and faster without a backward pass."""
        if request.dtype != torch.bfloat16 or not request.grad:
            return "it gains in bf16 training only"
        return None

    @staticmethod
    def prepare(request: Request) -> Triangle:
        """The triangle of one block."""
        size = min(ROWS, request.keys)
        return Triangle(torch.full((size, size), -math.inf, device=request.device).triu(1))

    @staticmethod
    def attend(q: Tensor, k: Tensor, v: Tensor, pattern: Triangle, scale: float) -> Tensor:
        """See `Backend.attend`."""
        return _RowBlocks.apply(q, k, v, pattern.bias, scale)


def _blocks(shape: torch.Size) -> Iterator[tuple[int, int]]:
    """Where blocks start and end, for queries of shape `[B, H, T, C]`."""
    batch, heads, time, _ = shape
    size = ROWS if 4 * batch * heads * ROWS * time <= CACHE else ROWS // 2
    return ((start, min(start + size, time)) for start in range(0, time, size))


class _RowBlocks(torch.autograd.Function):
    """Rows of the G = H / K query heads that share keys lie together, so a block of them is one slice."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
        groups = q.shape[1] // k.shape[1]
        queries, keys, values = _by_row(q, groups), k.flatten(0, 1), v.flatten(0, 1)
        exact, transposed = queries.float() * scale, keys.float().transpose(1, 2)
        out, kept = torch.empty_like(queries), []
        for start, end in _blocks(q.shape):
            rows = slice(start * groups, end * groups)
            scores = exact[:, rows].bmm(transposed[:, :, :end])
            triangle = bias[: end - start, None, : end - start]
            scores.unflatten(1, (-1, groups))[..., start:].add_(triangle)
            weights = scores.softmax(-1).to(v.dtype)
            out[:, rows] = weights.bmm(values[:, :end])
            kept.append(weights)
        ctx.save_for_backward(queries, keys, values, out, *kept)
        ctx.scale, ctx.groups = scale, groups
        return _by_head(out, q.shape, groups)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        queries, keys, values, out, *kept = ctx.saved_tensors
        groups, batch = ctx.groups, len(grad)
        upstream, transposed = _by_row(grad, groups), values.transpose(1, 2)
        inner = (upstream.float() * out.float()).sum(-1, keepdim=True)
        d_queries = torch.empty_like(queries)
        d_keys, d_values = torch.zeros_like(keys), torch.zeros_like(values)
        for (start, end), weights in zip(_blocks(grad.shape), kept, strict=True):
            rows = slice(start * groups, end * groups)
            above = upstream[:, rows]
            d_values[:, :end].add_(weights.transpose(1, 2).bmm(above))
            slope = above.bmm(transposed[:, :, :end]).float().sub_(inner[:, rows])
            d_scores = slope.mul_(weights).to(queries.dtype)
            d_queries[:, rows] = d_scores.bmm(keys[:, :end])
            d_keys[:, :end].add_(d_scores.transpose(1, 2).bmm(queries[:, rows]))
        d_q = _by_head(d_queries.mul_(ctx.scale), grad.shape, groups)
        return (
            d_q,
            d_keys.mul_(ctx.scale).unflatten(0, (batch, -1)),
            d_values.unflatten(0, (batch, -1)),
            None,
            None,
        )


def _by_row(x: Tensor, groups: int) -> Tensor:
    """`[B, H, T, C] -> [B K, T G, C]`: a row's query heads side by side."""
    return x.unflatten(1, (-1, groups)).transpose(2, 3).flatten(0, 1).flatten(1, 2).contiguous()


def _by_head(x: Tensor, shape: torch.Size, groups: int) -> Tensor:
    """Back to `[B, H, T, C]`."""
    batch, heads, time, width = shape
    return x.view(batch, heads // groups, time, groups, width).transpose(2, 3).reshape(shape)
