"""Layer inputs that activation checkpointing keeps, side by side in one block of memory.

A kept tensor that lies where it was computed pins a hole between the temporaries around it, and with hundreds
of layers the heap of a C library grows to twice what is in use. Allocators of GPUs sort by size and need none
of this.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_map


class Slab:
    """Room for `count` states of one forward.

    Args:
        count: how often `keep` will be called at most.
    """

    def __init__(self, count: int):
        self.count = count
        self._used: dict[tuple[torch.Size, torch.dtype], int] = {}
        self._memory: dict[tuple[torch.Size, torch.dtype], Tensor] = {}

    def keep(self, state: Any) -> Any:
        """The state with its tensors moved into the slab, those on a CPU that have a gradient."""
        return tree_map(self._keep, state)

    def _keep(self, x: Any) -> Any:
        if not isinstance(x, Tensor) or x.device.type != "cpu" or not x.requires_grad:
            return x
        kind = (x.shape, x.dtype)
        if kind not in self._memory:
            self._memory[kind] = torch.empty((self.count, x.numel()), dtype=x.dtype)
        place = self._used.get(kind, 0)
        if place == self.count:  # a state with several tensors alike: another slab for the next ones
            self._memory[kind], place = torch.empty_like(self._memory[kind]), 0
        self._used[kind] = place + 1
        return _Move.apply(x, _part(self._memory[kind], place, x))


def _part(memory: Tensor, place: int, like: Tensor) -> Tensor:
    """Row `place` as a tensor of its own: a view would share the version counter of all rows."""
    strides = torch.empty(like.shape, device="meta").stride()
    return memory.new_empty(0).set_(memory.untyped_storage(), place * memory.shape[1], like.shape, strides)


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, place: Tensor) -> Tensor:
        ctx.mark_dirty(place)
        return place.copy_(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
