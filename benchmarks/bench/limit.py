"""What a training step cannot do without, each alone: its matrix products, its attention, its head.

No norms, rotation, activations, loss, optimiser or dispatch are in it. The attention is torch's own; a
candidate with a faster one can go beyond the limit.

Shapes: N tokens, B batch, T time, D width, F hidden width, V vocabulary, H heads, K kv heads, C head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.bench.shapes import HEAD_DIM, VOCABULARY, Shape
from benchmarks.bench.timing import Times, total

Step = Callable[[], None]
SAMPLE = 8
"""Layers whose time is measured; it is scaled to the depth."""
LAYERS, ATTENTION, HEAD = PARTS = ("limit: layers' GEMMs", "limit: attention", "limit: head GEMMs")


def parts(shape: Shape) -> dict[str, Step]:
    """The parts of the limit as steps to be timed; those of layers stand for `sampled(shape)` of them."""
    dtype = torch.bfloat16 if shape.bf16 else torch.float32
    width, kv = shape.heads * HEAD_DIM, 2 * shape.kv_heads * HEAD_DIM
    matrices = [(width + kv, shape.dim), (shape.dim, width)]
    matrices += [(2 * shape.hidden, shape.dim), (shape.dim, shape.hidden)]
    layer = [Product(shape.tokens, rows, columns, dtype) for rows, columns in matrices]
    attention, count = Attention(shape, dtype), sampled(shape)
    return {
        LAYERS: lambda: repeat(layer, count),
        ATTENTION: lambda: repeat([attention], count),
        HEAD: Product(shape.tokens, VOCABULARY, shape.dim, dtype),
    }


def sampled(shape: Shape) -> int:
    """How many layers are measured."""
    return min(SAMPLE, shape.depth)


def whole(times: Times, shape: Shape) -> list[float]:
    """The limit of every round, from the rounds of its parts."""
    scale = shape.depth / sampled(shape)
    layers = [[seconds * scale for seconds in times[part]] for part in (LAYERS, ATTENTION)]
    return total(*layers, times[HEAD])


def repeat(steps: Sequence[Step], count: int) -> None:
    """All steps, `count` times."""
    for _ in range(count):
        for step in steps:
            step()


class Product:
    """`y = x w^T` and its two derivatives into given buffers: `x [N, columns]`, `w [rows, columns]`."""

    def __init__(self, tokens: int, rows: int, columns: int, dtype: torch.dtype):
        self.x, self.dx = torch.randn(tokens, columns).to(dtype), torch.empty(tokens, columns, dtype=dtype)
        self.w, self.dw = torch.randn(rows, columns).to(dtype), torch.empty(rows, columns, dtype=dtype)
        self.y, self.dy = torch.empty(tokens, rows, dtype=dtype), torch.randn(tokens, rows).to(dtype)

    def __call__(self) -> None:
        """Forward and backward."""
        torch.mm(self.x, self.w.T, out=self.y)
        torch.mm(self.dy, self.w, out=self.dx)
        torch.mm(self.dy.T, self.x, out=self.dw)


class Attention:
    """Causal attention by torch, forward and backward: q `[B, H, T, C]`, k and v `[B, K, T, C]`."""

    def __init__(self, shape: Shape, dtype: torch.dtype):
        def heads(number: int) -> Tensor:
            values = torch.randn(shape.batch, shape.length, number, HEAD_DIM).to(dtype).transpose(1, 2)
            return values.requires_grad_()

        self.inputs = heads(shape.heads), heads(shape.kv_heads), heads(shape.kv_heads)
        self.gradient = torch.randn(shape.batch, shape.heads, shape.length, HEAD_DIM).to(dtype)
        self.grouped = shape.heads != shape.kv_heads

    def __call__(self) -> None:
        """Forward and backward."""
        y = F.scaled_dot_product_attention(*self.inputs, is_causal=True, enable_gqa=self.grouped)
        torch.autograd.grad(y, self.inputs, self.gradient)
