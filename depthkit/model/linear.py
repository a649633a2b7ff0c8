"""A linear map whose weight is left to `reset_parameters` of the whole model."""

from __future__ import annotations

import torch
from torch import nn


class _Uninitialised(nn.Linear):
    def reset_parameters(self) -> None:
        """A bias starts at zero; the model fills every matrix by role, from a stream of its own."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def linear(inputs: int, outputs: int, dtype: torch.dtype | None = None, bias: bool = False) -> nn.Linear:
    """`y = x W^T`, and `+ b` with `bias`; W `[outputs, inputs]`, not yet filled."""
    return _Uninitialised(inputs, outputs, bias=bias, dtype=dtype)
