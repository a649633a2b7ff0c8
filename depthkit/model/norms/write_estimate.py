"""How much variance attention adds to the stream, estimated from its weights now and then.

Shapes: B batch, T time, D width; S is the sequence length seen in training.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class WriteEstimate(nn.Module):
    """Keeps c = ||W_V W_O||_F^2 / (S D), or H_S times that, in a buffer.

    White input of variance v gives attention that averages S tokens evenly an output of variance c v. With a
    causal mask token t averages t tokens, and the mean of 1/t is H_S / S (H_S = 1 + 1/2 + ... + 1/S).

    c belongs to the weights of the forward it was computed in; a checkpoint holds both, so that a loaded
    model equals the saved one. Weights that come without a c do not fit the old one: as on a fresh model, it
    is computed at the next forward, whether in training or not.

    Args:
        config: `variance` (paper or causal) and `refresh`, training forwards between computations.
        dim: D.
    """

    c: Tensor
    length: Tensor
    forwards: Tensor

    def __init__(self, config: Any, dim: int):
        super().__init__()
        self.config = config
        self.dim = dim
        self.register_buffer("c", torch.zeros(1))
        self.register_buffer("length", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("forwards", torch.zeros(1, dtype=torch.int64))
        self._count: int | None = (
            None  # `forwards` as a number, which costs no wait for the device; None: read it
        )

    def reset_parameters(self) -> None:
        """c is not known."""
        for buffer in (self.c, self.length, self.forwards):
            buffer.zero_()
        self._count = 0

    def look(self, mixer: nn.Module, ids: Tensor) -> None:
        """Compute c if it is due, for windows as long as those of `ids` `[B, T]`."""
        if self._count is None:
            self._count = int(self.forwards)
        if self._count == 0 or (self.training and self._count % self.config.refresh == 0):
            self._compute(mixer, ids.shape[1])
        if self.training:
            self._count += 1
            self.forwards.fill_(self._count)

    @torch.no_grad()
    def _compute(self, mixer: nn.Module, length: int) -> None:
        self.length.fill_(length)
        tokens = self.length.double()
        if self.config.variance == "causal":
            tokens = tokens / (torch.digamma(tokens + 1) - torch.digamma(torch.ones_like(tokens)))
        self.c.copy_(mixer.write_power() / (tokens * self.dim))  # type: ignore[operator]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Believe what is loaded; without a count of forwards among it, c is not known."""
        if f"{prefix}forwards" not in state_dict:
            self.reset_parameters()
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._count = None
