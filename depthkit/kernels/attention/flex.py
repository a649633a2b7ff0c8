"""Torch's FlexAttention: a mask by rule, evaluated in blocks, so that blocks nobody sees cost nothing.

Source: arXiv:2412.05496. On CPU torch has its forward only.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from depthkit.kernels.attention.base import ATTENTION, Backend, Request

WORTHWHILE = 1024
"""Keys from which a block-sparse mask is worth compiling for: eight blocks of 128 a row."""


@ATTENTION.register("flex")
class Flex(Backend):
    """Torch's FlexAttention with a block mask; trains on CUDA, forward only on CPU."""

    priority = 20

    @staticmethod
    def refuses(request: Request) -> str | None:
        """Training on CPU, heads too narrow for its CUDA kernel, or no compiler for that kernel."""
        kind = request.device.type
        if kind == "cpu" and request.grad:
            return "FlexAttention has no backward on CPU: train with sdpa, or run under torch.no_grad()"
        if kind not in ("cpu", "cuda"):
            return f"it runs on cpu and cuda, not on {kind}"
        if kind == "cuda" and request.head_dim < 16:
            return f"its CUDA kernel needs head_dim of at least 16, not {request.head_dim}"
        if kind == "cuda" and importlib.util.find_spec("triton") is None:
            return "its CUDA kernel is compiled by triton, which is not installed"
        return None

    @staticmethod
    def defers(request: Request) -> str | None:
        """On CPU, without a mask, on short sequences, and while decoding."""
        if request.device.type != "cuda":
            return "on CPU it runs unfused"
        if not request.masked:
            return "there is no mask whose blocks could be skipped"
        if request.keys < WORTHWHILE or request.queries != request.keys:
            return f"it pays off from {WORTHWHILE} positions on, and not while decoding"
        return None

    @staticmethod
    def prepare(request: Request) -> BlockMask | None:
        """The block mask; None where everything is seen."""
        if not request.masked and not request.causal:
            return None
        batch = None if request.documents is None else request.batch
        return create_block_mask(
            _rule(request), batch, None, request.queries, request.keys, device=request.device
        )

    @staticmethod
    def attend(q: Tensor, k: Tensor, v: Tensor, pattern: BlockMask | None, scale: float) -> Tensor:
        """See `Backend.attend`."""
        q, k = q.to(v.dtype), k.to(v.dtype)  # under autocast qk-norm leaves fp32
        kernel = _kernel(q.is_cuda)
        return kernel(q, k, v, block_mask=pattern, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


def _rule(request: Request) -> Callable[..., Tensor]:
    start, window, documents, causal = request.start, request.window, request.documents, request.causal

    def seen(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        row = query + start
        visible = (key <= row) if causal else (key >= 0)
        if window is not None:
            visible = visible & ((row - key).abs() < window)
        if documents is not None:
            visible = visible & (documents[b, row] == documents[b, key])
        return visible

    return seen


def _kernel(cuda: bool) -> Callable[..., Any]:
    if torch.compiler.is_compiling():
        return flex_attention
    return _compiled() if cuda else _unfused


@functools.cache
def _compiled() -> Callable[..., Any]:
    # Without fullgraph, the ninth kind of mask in a process would silently run unfused.
    return torch.compile(flex_attention, fullgraph=True)


def _unfused(*args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        return flex_attention(*args, **kwargs)
