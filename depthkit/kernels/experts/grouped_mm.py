"""Matrix products of rows sorted by expert, as two operators that are each other's derivatives.

They wrap torch's own `grouped_mm`, which as it stands (2.13) refuses widths that are not a multiple of 16
bytes, expanded gradients, and float32 under `torch.compile`, and on some GPUs leaves the weight gradient of
an expert without rows unwritten (pytorch issue 172439). On a CPU few rows go another way, see `padded`.

As registered operators they are whole to whoever looks at operators: the compiler, selective checkpointing,
FLOP counters. Where nobody looks, plain autograd functions do the same: inside a registered operator torch
keeps track of every view of every expert, which takes up to a third of the time.

Shapes: M rows, E experts, K input width, N output width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from torch.utils.flop_counter import register_flop_formula

from depthkit.kernels.experts.padded import Padded

_ALIGNMENT = 16  # bytes, of every row that torch's kernel reads


def implementation() -> str | None:
    """The name of torch's grouped matrix product, public or (earlier) private; None where it has none."""
    if hasattr(F, "grouped_mm"):
        return "torch.nn.functional.grouped_mm"
    return "torch._grouped_mm" if hasattr(torch, "_grouped_mm") else None


def _product(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    grouped = F.grouped_mm if hasattr(F, "grouped_mm") else torch._grouped_mm
    return grouped(a, b, offs=ends)


def _aligned(x: Tensor, *dims: int) -> Tensor:
    """`x` zero-padded so that `dims` are multiples of 16 bytes; `x` itself where they are already."""
    step = _ALIGNMENT // x.element_size()
    padding = [0] * (2 * x.dim())
    for dim in dims:
        padding[2 * (-dim) - 1] = -x.shape[dim] % step
    return F.pad(x, padding) if any(padding) else x


def _cut(x: Tensor, *shape: int) -> Tensor:
    """`x` without what `_aligned` padded."""
    return x if x.shape == shape else x[tuple(slice(size) for size in shape)].contiguous()


def linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """`x[i] @ weight[e]^T` for the rows i in `ends[e-1]:ends[e]`: `[M, K], [E, N, K], [E] int32 -> [M, N]`.

    Runs in the dtype of `x`. The weight is cast here, so a looped layer keeps no cast copy for every visit.
    """
    return _way(grouped_linear, _Linear, _multiply)(x, weight, ends)


def outer(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """`a[rows]^T @ b[rows]` for the rows of each expert: `[M, N], [M, K], [E] int32 -> [E, N, K]`.

    Zero for an expert without rows.
    """
    return _way(grouped_outer, _Outer, _multiply_outer)(a, b, ends)


def _way(operator: Any, function: type[torch.autograd.Function], plain: Any) -> Any:
    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode():
        return operator
    return function.apply if torch.is_grad_enabled() else plain


def _multiply(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    if padded := Padded.of(x, ends):
        return padded.linear(x, weight.to(x.dtype))
    if x.shape[0] == 0:
        return x.new_zeros(0, weight.shape[1])
    matrices = _aligned(weight.to(x.dtype), -1, -2)
    out = _product(_aligned(x.contiguous(), -1), matrices.transpose(-2, -1), ends)
    return _cut(out, x.shape[0], weight.shape[1])


def _multiply_outer(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    if padded := Padded.of(a, ends):
        return padded.outer(a, b)
    shape = (ends.shape[0], a.shape[1], b.shape[1])
    if a.shape[0] == 0:
        return a.new_zeros(shape)
    left, right = _aligned(a.contiguous(), -1), _aligned(b.contiguous(), -1)
    out = _cut(_product(left.t(), right, ends), *shape)
    if out.device.type != "cpu":
        out.masked_fill_((ends.diff(prepend=ends.new_zeros(1)) == 0)[:, None, None], 0)
    return out


grouped_linear = torch.library.custom_op("depthkit::grouped_linear", _multiply, mutates_args=())
grouped_outer = torch.library.custom_op("depthkit::grouped_outer", _multiply_outer, mutates_args=())


@grouped_linear.register_fake
def _(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


@grouped_outer.register_fake
def _(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    return a.new_empty(ends.shape[0], a.shape[1], b.shape[1])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _linear_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight, ends = ctx.saved_tensors
    need_x, need_weight, _ = ctx.needs_input_grad
    dx = linear(grad, weight.transpose(1, 2), ends) if need_x else None
    dweight = outer(grad, x, ends).to(weight.dtype) if need_weight else None
    return dx, dweight, None


def _outer_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    a, b, ends = ctx.saved_tensors
    need_a, need_b, _ = ctx.needs_input_grad
    da = linear(b, grad, ends) if need_a else None
    db = linear(a, grad.transpose(1, 2), ends) if need_b else None
    return da, db, None


grouped_linear.register_autograd(_linear_backward, setup_context=_save)
grouped_outer.register_autograd(_outer_backward, setup_context=_save)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, ends)
        return _multiply(x, weight, ends)

    backward = staticmethod(_linear_backward)


class _Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(a, b, ends)
        return _multiply_outer(a, b, ends)

    backward = staticmethod(_outer_backward)


@register_flop_formula(torch.ops.depthkit.grouped_linear)
def _linear_flops(x: Any, weight: Any, ends: Any, *args: Any, **kwargs: Any) -> int:
    return 2 * x[0] * weight[1] * weight[2]


@register_flop_formula(torch.ops.depthkit.grouped_outer)
def _outer_flops(a: Any, b: Any, ends: Any, *args: Any, **kwargs: Any) -> int:
    return 2 * a[0] * a[1] * b[1]
