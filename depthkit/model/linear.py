"""A bias-free linear map whose weight is left to `reset_parameters` of the whole model."""

from __future__ import annotations

import torch
from torch import nn


class _Uninitialised(nn.Linear):
    def reset_parameters(self) -> None:
        """Nothing: the model fills every matrix by role, from a stream of its own."""


def linear(inputs: int, outputs: int, dtype: torch.dtype | None = None) -> nn.Linear:
    """`y = x W^T`, W `[outputs, inputs]`, not yet filled."""
    return _Uninitialised(inputs, outputs, bias=False, dtype=dtype)
