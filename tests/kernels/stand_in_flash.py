"""A stand-in for the flash-attn package: the documented semantics of `flash_attn_varlen_func`, plainly.

It lets our packing, window and compile arithmetic be tested without a GPU. It says nothing about the kernels.
Like theirs it is an autograd function with a backward of its own, so that it can stand inside an operator.
"""

import math
import types

import torch


def visible(queries, keys, causal, window, no_limit):
    """Causal and windowed visibility, aligned to the bottom right corner as flash-attn documents it."""
    row = torch.arange(queries)[:, None] + keys - queries
    column = torch.arange(keys)[None, :]
    left, right = window
    mask = torch.ones(queries, keys, dtype=torch.bool)
    mask &= (column <= row) if causal else True
    mask &= (column >= row - left) if left != no_limit else True
    mask &= (column <= row + right) if right != no_limit else True
    return mask


class Varlen(torch.autograd.Function):
    @staticmethod
    def sequences(q, k, bounds_q, bounds_k, scale, causal, window, no_limit):
        """Slices and probabilities `[H, queries, keys]` of every sequence."""
        for a, b, c, d in zip(bounds_q[:-1], bounds_q[1:], bounds_k[:-1], bounds_k[1:], strict=True):
            mine, theirs = slice(int(a), int(b)), slice(int(c), int(d))
            shared = k[theirs].repeat_interleave(q.shape[1] // k.shape[1], 1)
            scores = torch.einsum("qhc,khc->hqk", q[mine], shared) * scale
            mask = visible(int(b - a), int(d - c), causal, window, no_limit)
            yield mine, theirs, shared, scores.masked_fill(~mask, -math.inf).softmax(-1)

    @staticmethod
    def forward(ctx, q, k, v, *rest):
        ctx.save_for_backward(q, k, v)
        ctx.rest = rest
        out = torch.full_like(q, math.nan)
        for mine, theirs, _, weights in Varlen.sequences(q, k, *rest):
            values = v[theirs].repeat_interleave(q.shape[1] // v.shape[1], 1)
            out[mine] = torch.einsum("hqk,khc->qhc", weights, values)
        return out

    @staticmethod
    def backward(ctx, grad):
        (q, k, v), scale = ctx.saved_tensors, ctx.rest[2]
        group = q.shape[1] // k.shape[1]
        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
        for mine, theirs, shared, weights in Varlen.sequences(q, k, *ctx.rest):
            values = v[theirs].repeat_interleave(group, 1)
            dweights = torch.einsum("qhc,khc->hqk", grad[mine], values)
            dscores = weights * (dweights - (weights * dweights).sum(-1, keepdim=True)) * scale
            dq[mine] = torch.einsum("hqk,khc->qhc", dscores, shared)
            dk[theirs] = torch.einsum("hqk,qhc->khc", dscores, q[mine]).unflatten(1, (-1, group)).sum(2)
            dv[theirs] = torch.einsum("hqk,qhc->khc", weights, grad[mine]).unflatten(1, (-1, group)).sum(2)
        return dq, dk, dv, *(None for _ in ctx.rest)


def stand_in(no_limit, returns_tuple=False):
    """A module with `flash_attn_varlen_func` whose windows say "no limit" by `no_limit`."""

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal, window_size
    ):
        assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
        assert len(cu_seqlens_q) == len(cu_seqlens_k)
        for bounds, longest, rows in ((cu_seqlens_q, max_seqlen_q, q), (cu_seqlens_k, max_seqlen_k, k)):
            assert bounds[0] == 0
            assert bounds[-1] == len(rows)
            assert int(bounds.diff().min()) >= 0
            assert int(bounds.diff().max()) <= longest
        assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
        y = Varlen.apply(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal, window_size, no_limit)
        return (y, None) if returns_tuple else y

    module = types.ModuleType("stand_in_flash_attn")
    module.flash_attn_varlen_func = flash_attn_varlen_func
    return module
