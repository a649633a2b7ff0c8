"""What probes add to while they look: sums and largest values that several processes can put together.

Every process sees some of the sequences. What a probe keeps in these is, once merged, what one process would
have that sees all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from depthkit.utilization.statistics import Array

T = TypeVar("T")


class Ranks(Protocol):
    """The processes that share an evaluation; each calls every method, in the same order."""

    rank: int
    size: int

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all of them; the tensor itself stays as it is."""

    def gather(self, value: T) -> list[T]:
        """What every one of them has, in order."""


class Scratch:
    """What a process has for itself, such as a cache: no part of any answer."""


class Accumulator(ABC):
    """Something that is added to, then merged, then read."""

    touched = False
    """Whether something was added since the last merge."""
    merged = False

    def merge(self, ranks: Ranks) -> None:
        """Take in what the other processes have; from then on nothing may be added."""
        self._merge(ranks)
        self.touched, self.merged = False, True

    @abstractmethod
    def _merge(self, ranks: Ranks) -> None: ...

    @abstractmethod
    def form(self) -> Any:
        """Keys and shapes in order, which have to be alike in all processes."""


class Total(Accumulator):
    """A sum of fixed shape; `values` are 0 where nothing was added, and stay the same array."""

    def __init__(self, *shape: int):
        self.values: Array = np.zeros(shape)

    def add(self, where: Any, values: Any) -> None:
        """Add to an entry or a slice."""
        self.values[where] += values
        self.touched = True

    def _merge(self, ranks: Ranks) -> None:
        self.values[...] = ranks.sum(torch.from_numpy(self.values)).numpy()

    def form(self) -> Any:
        """See `Accumulator`."""
        return self.values.shape


class Totals(Accumulator):
    """Sums by key, each of the shape, type and device of what is first added to it."""

    def __init__(self) -> None:
        self.values: dict[Any, Tensor] = {}

    def add(self, key: Hashable, values: Tensor) -> None:
        """Add to the whole of a sum."""
        self._at(key, values.shape, values).add_(values)

    def add_rows(self, key: Hashable, values: Tensor, rows: slice, count: int) -> None:
        """Add to some rows of a sum of `count` rows."""
        self._at(key, torch.Size((count, *values.shape[1:])), values)[rows] += values

    def _at(self, key: Hashable, shape: torch.Size, like: Tensor) -> Tensor:
        self.touched = True
        if key not in self.values:
            self.values[key] = like.new_zeros(shape)
        return self.values[key]

    def _merge(self, ranks: Ranks) -> None:
        for values in self.values.values():
            values.copy_(ranks.sum(values))

    def form(self) -> Any:
        """See `Accumulator`."""
        return [(key, tuple(values.shape)) for key, values in self.values.items()]


class Largest(Accumulator):
    """The largest of what is seen, of fixed shape; NaN where nothing was."""

    def __init__(self, *shape: int):
        self.values: Array = np.full(shape, np.nan)

    def add(self, where: Any, value: float) -> None:
        """Take in one more value of an entry."""
        self.values[where] = np.fmax(self.values[where], value)
        self.touched = True

    def _merge(self, ranks: Ranks) -> None:
        self.values[...] = np.fmax.reduce(ranks.gather(self.values))

    def form(self) -> Any:
        """See `Accumulator`."""
        return self.values.shape
