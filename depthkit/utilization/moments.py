"""Streamed covariances: sums of outer products in fp64, so that no token has to be kept.

Shapes: N tokens, D width of x, E width of y.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 1e-14
"""A share of the second moment below which a variance is what fp64 rounding left of it."""


class Moments:
    """Number, means and covariances of x `[N, D]` and, if given, of x with y `[N, E]`.

    Holds D (D + E) fp64 numbers.
    """

    def __init__(self) -> None:
        self.count = 0
        self._x: Tensor | None = None
        self._y: Tensor | None = None
        self._xx: Tensor | None = None
        self._xy: Tensor | None = None

    def add(self, x: Tensor, y: Tensor | None = None) -> None:
        """Take in some tokens."""
        x = x.double()
        self.count += len(x)
        self._x, self._xx = _plus(self._x, x.sum(0)), _plus(self._xx, x.T @ x)
        if y is not None:
            y = y.double()
            self._y, self._xy = _plus(self._y, y.sum(0)), _plus(self._xy, x.T @ y)

    def __add__(self, other: Moments) -> Moments:
        """Of both sets of tokens."""
        both = Moments()
        both.count = self.count + other.count
        for name in ("_x", "_y", "_xx", "_xy"):
            parts = [part for part in (getattr(self, name), getattr(other, name)) if part is not None]
            setattr(both, name, sum(parts[1:], parts[0]) if parts else None)
        return both

    def mean_x(self) -> Tensor:
        """`[D]`."""
        assert self._x is not None
        return self._x / self.count

    def mean_y(self) -> Tensor:
        """`[E]`."""
        assert self._y is not None
        return self._y / self.count

    def covariance(self) -> Tensor:
        """`[D, D]` of x (divided by N); exactly 0 where x does not vary."""
        assert self._xx is not None
        mean, second = self.mean_x(), self._xx / self.count
        centred = second - torch.outer(mean, mean)
        return torch.zeros_like(centred) if centred.trace() <= ROUNDING * second.trace() else centred

    def cross(self) -> Tensor:
        """`[D, E]` covariance of x with y (divided by N)."""
        assert self._xy is not None
        return self._xy / self.count - torch.outer(self.mean_x(), self.mean_y())


def _plus(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total.add_(part)
