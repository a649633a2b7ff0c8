"""A linear map whose weight is left to `reset_parameters` of the whole model."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class _Uninitialised(nn.Linear):
    def reset_parameters(self) -> None:
        """A bias starts at zero; the model fills every matrix by role, from a stream of its own."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def linear(inputs: int, outputs: int, dtype: torch.dtype | None = None, bias: bool = False) -> nn.Linear:
    """`y = x W^T`, and `+ b` with `bias`; W `[outputs, inputs]`, not yet filled."""
    return _Uninitialised(inputs, outputs, bias=bias, dtype=dtype)


def together(x: Tensor, *maps: nn.Linear) -> tuple[Tensor, ...]:
    """What each of `maps` makes of `x`.

    One product where that is compiled under autocast: weights are copied there anyway, and a product in bf16
    costs more to start than to compute at small widths.
    """
    fused = torch.compiler.is_compiling() and torch.is_autocast_enabled(x.device.type)
    if not fused or not all(map(_is_plain, maps)):
        return tuple(each(x) for each in maps)
    weights = torch.cat([each.weight for each in maps])
    return F.linear(x, weights).split([each.out_features for each in maps], -1)


def _is_plain(each: nn.Linear) -> bool:
    """Whether it does nothing but multiply: what has been put in its place, or hooked to it, must run."""
    hooked = (
        each._forward_hooks or each._forward_pre_hooks or each._backward_hooks or each._backward_pre_hooks
    )
    return type(each) is _Uninitialised and each.bias is None and not hooked
