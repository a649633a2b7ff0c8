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
"""Queries in a block: fewer save more scores, more make larger matrix products."""


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


def _blocks(time: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + ROWS, time)) for start in range(0, time, ROWS))


class _RowBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
        batch, heads, time, width = q.shape
        pairs, groups = batch * k.shape[1], heads // k.shape[1]
        queries = q.reshape(pairs, groups, time, width)
        keys, values = k.reshape(pairs, time, width), v.reshape(pairs, time, width)
        exact, transposed = queries.float() * scale, keys.float().transpose(1, 2)
        out = torch.empty_like(queries)
        kept = []
        for start, end in _blocks(time):
            rows = end - start
            scores = exact[:, :, start:end].reshape(pairs, -1, width) @ transposed[:, :, :end]
            scores = scores.view(pairs, groups, rows, end)
            scores[..., start:] += bias[:rows, :rows]
            weights = scores.softmax(-1).to(v.dtype).view(pairs, -1, end)
            out[:, :, start:end] = (weights @ values[:, :end]).view(pairs, groups, rows, width)
            kept.append(weights)
        ctx.save_for_backward(queries, keys, values, out, *kept)
        ctx.scale = scale
        return out.view_as(q)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        queries, keys, values, out, *kept = ctx.saved_tensors
        pairs, groups, time, width = queries.shape
        upstream = grad.reshape(queries.shape)
        inner = (upstream.float() * out.float()).sum(-1, keepdim=True)
        transposed = values.transpose(1, 2)
        d_queries = torch.empty_like(queries)
        d_keys, d_values = torch.zeros_like(keys), torch.zeros_like(values)
        for (start, end), weights in zip(_blocks(time), kept, strict=True):
            above = upstream[:, :, start:end].reshape(pairs, -1, width)
            d_values[:, :end].baddbmm_(weights.transpose(1, 2), above)
            slope = (
                (above @ transposed[:, :, :end]).float().sub_(inner[:, :, start:end].reshape(pairs, -1, 1))
            )
            d_scores = slope.mul_(weights).to(queries.dtype)
            d_queries[:, :, start:end] = (d_scores @ keys[:, :end]).view(pairs, groups, -1, width)
            block = queries[:, :, start:end].reshape(pairs, -1, width)
            d_keys[:, :end].baddbmm_(d_scores.transpose(1, 2), block)
        return (
            (d_queries * ctx.scale).view_as(grad),
            (d_keys * ctx.scale).view(grad.shape[0], -1, time, width),
            d_values.view(grad.shape[0], -1, time, width),
            None,
            None,
        )
