"""The processes of one run: adding up, agreeing, and what only the first of them does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from depthkit.training.parallel.world import ToldElsewhere

T = TypeVar("T")


class Ranks:
    """A single process: every sum is its own value. `Group` is the same for several."""

    rank = 0
    size = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all ranks, without gradient."""
        return tensor

    def largest(self, value: int) -> int:
        """The largest of one number per rank."""
        return value

    def gather(self, value: T) -> list[T]:
        """What every rank has, in order, on every rank."""
        return [value]

    def first(self, function: Callable[[], T]) -> T:
        """What `function` returns on the first rank, which alone calls it.

        Raises:
            ValueError, OSError: what it raised there; `ToldElsewhere` on the others.
        """
        return function()

    def first_then_all(self, function: Callable[[], T]) -> T:
        """What `function` returns, called on every rank: on the others once the first one is done.

        Raises:
            ValueError, OSError: as `first`.
        """
        held: list[T] = []
        self.first(lambda: held.append(function()))
        return held[0] if held else function()


class Group(Ranks):
    """All processes of torch's default group; every method is called by all of them, in the same order."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    @torch.no_grad()
    def sum(self, tensor: Tensor) -> Tensor:
        """See `Ranks`."""
        total = tensor.detach().clone()
        dist.all_reduce(total)
        return total

    def largest(self, value: int) -> int:
        """See `Ranks`."""
        held = torch.tensor(value)
        dist.all_reduce(held, dist.ReduceOp.MAX)
        return int(held)

    def gather(self, value: T) -> list[T]:
        """See `Ranks`."""
        held: list[Any] = [None] * self.size
        dist.all_gather_object(held, value)
        return held

    def first(self, function: Callable[[], T]) -> T:
        """See `Ranks`."""
        told: list[Any] = [None, False]
        try:
            if self.is_first:
                told = [function(), True]
        finally:
            dist.broadcast_object_list(told, 0)
        value, done = told
        if not done:
            raise ToldElsewhere
        return value


ALONE = Ranks()
"""One process."""


def summed(ranks: Ranks, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The sums of several tensors of one dtype over all ranks, in one go."""
    if ranks.size == 1 or not tensors:
        return list(tensors)
    flat = ranks.sum(torch.cat([tensor.flatten() for tensor in tensors]))
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
