"""Streamed covariances: sums of outer products in fp64, so that no token has to be kept.

Shapes: N tokens, D width of x, E width of y.
"""

from __future__ import annotations

import torch
from torch import Tensor

from depthkit.utilization.accumulators import Totals

ROUNDING = 1e-14
"""A share of the second moment below which a variance is what fp64 rounding left of it."""


class Moments:
    """Number, means and covariances of x `[N, D]` and, if given, of x with y `[N, E]`.

    Holds D (D + E) fp64 numbers.
    """

    def __init__(self) -> None:
        self._totals = Totals()

    @property
    def _sums(self) -> dict[str, Tensor]:
        return self._totals.values

    @property
    def count(self) -> int:
        """Number of tokens."""
        return int(self._sums.get("count", 0))

    def add(self, x: Tensor, y: Tensor | None = None) -> None:
        """Take in some tokens."""
        x = x.double()
        self._totals.add("count", torch.tensor(len(x)))
        self._totals.add("x", x.sum(0))
        self._totals.add("xx", x.T @ x)
        if y is not None:
            y = y.double()
            self._totals.add("y", y.sum(0))
            self._totals.add("xy", x.T @ y)

    def __add__(self, other: Moments) -> Moments:
        """Of both sets of tokens."""
        both = Moments()
        for part in (self, other):
            for name, total in part._sums.items():
                both._totals.add(name, total)
        return both

    def mean_x(self) -> Tensor:
        """`[D]`."""
        return self._sums["x"] / self.count

    def mean_y(self) -> Tensor:
        """`[E]`."""
        return self._sums["y"] / self.count

    def covariance(self) -> Tensor:
        """`[D, D]` of x (divided by N); exactly 0 where x does not vary."""
        mean, second = self.mean_x(), self._sums["xx"] / self.count
        centred = second - torch.outer(mean, mean)
        return torch.zeros_like(centred) if centred.trace() <= ROUNDING * second.trace() else centred

    def cross(self) -> Tensor:
        """`[D, E]` covariance of x with y (divided by N)."""
        return self._sums["xy"] / self.count - torch.outer(self.mean_x(), self.mean_y())
