"""What comes out: from the normalised residual stream to logits and losses."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from depthkit.model.cross_entropy import CrossEntropy, chunked_cross_entropy, token_cross_entropy
from depthkit.model.registries import HEADS
from depthkit.model.roles import assign
from depthkit.registry import Spec


@HEADS.register("lm")
class LanguageModelHead(nn.Module):
    """Language-model head; `tied: true` reads the embedding matrix and owns no parameters.

    Every method takes `matrix`, the `[V, D]` weight that `weights(embedding)` returned.
    """

    equation = "logits = weight h; loss = cross-entropy + z_loss * logsumexp(logits)^2"
    source = "tying arXiv:1608.05859; z-loss arXiv:2204.02311"

    class Config(Spec):
        """Settings of `lm`."""

        tied: bool = False
        """Use the embedding matrix as the output matrix."""
        z_loss: float = Field(0.0, ge=0)
        """Weight of the squared log-partition."""
        chunk: int = Field(256, ge=1)
        """Tokens whose logits exist at a time."""

        def num_parameters(self, dim: int, vocab_size: int) -> int:
            """Parameters of its own."""
            return 0 if self.tied else dim * vocab_size

    def __init__(self, config: Any, dim: int, vocab_size: int):
        super().__init__()
        self.config = config
        self.weight = None if config.tied else nn.Parameter(torch.empty(vocab_size, dim))
        if not config.tied:
            assign(self, head="weight")

    def weights(self, embedding: Tensor) -> Tensor:
        """The `[V, D]` output matrix."""
        return embedding if self.weight is None else self.weight

    def forward(self, hidden: Tensor, matrix: Tensor) -> Tensor:
        """Logits `[..., V]` of hidden `[..., D]`."""
        return hidden @ matrix.to(hidden.dtype).T

    def loss(self, hidden: Tensor, matrix: Tensor, targets: Tensor) -> CrossEntropy:
        """Sums over scored tokens; hidden `[B, T, D]`, targets `[B, T]`."""
        return chunked_cross_entropy(
            hidden.flatten(0, 1), matrix, targets.flatten(), self.config.chunk, self.config.z_loss
        )

    def token_losses(self, hidden: Tensor, matrix: Tensor, targets: Tensor) -> Tensor:
        """Nats of every token `[B, T]`, 0 where not scored; no gradient."""
        flat = token_cross_entropy(hidden.flatten(0, 1), matrix, targets.flatten(), self.config.chunk)
        return flat.view_as(targets)
