"""Torch's fused attention, `torch.nn.functional.scaled_dot_product_attention`."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from depthkit.kernels.attention.base import ATTENTION, Backend
from depthkit.kernels.attention.masks import Dense, dense


@ATTENTION.register("sdpa")
class Sdpa(Backend):
    """Torch's fused attention: the default on CPU, and where nothing else is installed."""

    priority = 10
    prepare = staticmethod(dense)

    @staticmethod
    def attend(q: Tensor, k: Tensor, v: Tensor, pattern: Dense, scale: float) -> Tensor:
        """See `Backend.attend`."""
        shared = q.shape[1] != k.shape[1]
        if shared and pattern.mask is not None and q.is_cuda:
            # The fused CUDA kernel that takes a mask does not let query heads share key/value heads.
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
            shared = False
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=pattern.mask, is_causal=pattern.causal, scale=scale, enable_gqa=shared
        )
