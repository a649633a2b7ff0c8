"""flash-attn as one function, eager or compiled.

Eager, the library's own autograd function runs. Inside a compiled block it is an opaque operator, because
not every release of flash-attn can be traced; its backward then runs the library's forward once more.

Shapes: N queries and M keys of all sequences, H heads, K key/value heads, C head_dim, R sequences.
"""

from typing import Any

import torch
from torch import Tensor

from depthkit.kernels.attention import flash_library
from depthkit.kernels.attention.packing import Packed


def flash_varlen(q: Tensor, k: Tensor, v: Tensor, pattern: Packed, scale: float) -> Tensor:
    """q `[N, H, C]`, k and v `[M, K, C]` -> `[N, H, C]`."""
    run = _opaque if torch.compiler.is_compiling() else _run
    queries, keys, limits, causal, library = pattern
    return run(q, k, v, queries, keys, list(limits), causal, library, scale)


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_bounds: Tensor,
    key_bounds: Tensor,
    limits: list[int],
    causal: bool,
    library: str,
    scale: float,
) -> Tensor:
    return flash_library.call(
        library,
        window=(limits[2], limits[3]),
        q=q,
        k=k,
        v=v,
        cu_seqlens_q=query_bounds,
        cu_seqlens_k=key_bounds,
        max_seqlen_q=limits[0],
        max_seqlen_k=limits[1],
        softmax_scale=scale,
        causal=causal,
    )


def _run_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_bounds: Tensor,
    key_bounds: Tensor,
    limits: list[int],
    causal: bool,
    library: str,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    with torch.enable_grad():
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        y = _run(q, k, v, query_bounds, key_bounds, limits, causal, library, scale)
    dq, dk, dv = torch.autograd.grad(y, (q, k, v), grad)
    return dq, dk, dv


_opaque = torch.library.custom_op("depthkit::flash_varlen", _run, mutates_args=())
_opaque_backward = torch.library.custom_op("depthkit::flash_varlen_backward", _run_backward, mutates_args=())


@_opaque.register_fake
def _(q: Tensor, *rest: Any) -> Tensor:
    return q.new_empty(q.shape)


@_opaque_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.rest = inputs[5:]


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    grads = _opaque_backward(grad.contiguous(), *ctx.saved_tensors, *ctx.rest)
    return (*grads, *(None for _ in range(6)))


_opaque.register_autograd(_differentiate, setup_context=_keep)
