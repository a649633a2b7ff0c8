"""Attention written out: the reference, and what probes of the probabilities need."""

from __future__ import annotations

from torch import Tensor

from depthkit.kernels.attention.base import ATTENTION, Backend
from depthkit.kernels.attention.masks import Dense, attention_probabilities, dense


@ATTENTION.register("eager")
class Eager(Backend):
    """Forms the probabilities, in fp32; for probes and references, on every device."""

    prepare = staticmethod(dense)

    @staticmethod
    def attend(q: Tensor, k: Tensor, v: Tensor, pattern: Dense, scale: float) -> Tensor:
        """See `Backend.attend`."""
        batch, queries, keys = q.shape[0], q.shape[2], k.shape[2]
        weights = attention_probabilities(q, k, pattern, scale).to(v.dtype)
        return (weights.reshape(batch, v.shape[1], -1, queries, keys) @ v[:, :, None]).reshape(q.shape)
