"""Products of few rows an expert on a CPU: every expert gets as many places as the fullest, and one batched
product does them all.

torch's grouped product calls a matrix product for every expert, and in bf16 a call costs a CPU more than the
product of some dozens of rows. In fp32 it does not.

Shapes: M rows, E experts, C places an expert, K input width, N output width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

PLACES, WASTE = 96, 5
"""The most places an expert may have, and the most places in all, as a multiple of the rows."""


class Padded(NamedTuple):
    """Where sorted rows stand when every expert has the same number of places."""

    places: Tensor
    """`[M]`."""
    experts: int
    each: int

    @staticmethod
    def of(x: Tensor, ends: Tensor) -> Padded | None:
        """For rows `x [M, K]`, or None where padding would not pay."""
        if x.dtype is not torch.bfloat16 or x.device.type != "cpu" or not len(x):
            return None
        counts = ends.diff(prepend=ends.new_zeros(1))
        each, experts = int(counts.max()), len(counts)
        if each > PLACES or each * experts > WASTE * len(x):
            return None
        shifts = torch.arange(experts) * each - (ends - counts)
        return Padded(
            torch.arange(len(x)) + shifts.repeat_interleave(counts, output_size=len(x)), experts, each
        )

    def spread(self, x: Tensor) -> Tensor:
        """`[M, K] -> [E, C, K]`, zero where no row stands."""
        out = x.new_zeros(self.experts * self.each, x.shape[1])
        return out.index_copy_(0, self.places, x).view(self.experts, self.each, -1)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """`[M, K], [E, N, K] -> [M, N]`."""
        out = torch.bmm(self.spread(x), weight.transpose(1, 2))
        return out.flatten(0, 1).index_select(0, self.places)

    def outer(self, a: Tensor, b: Tensor) -> Tensor:
        """`[M, N], [M, K] -> [E, N, K]`."""
        return torch.bmm(self.spread(a).transpose(1, 2), self.spread(b))
