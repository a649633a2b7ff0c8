"""What goes into the residual stream."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn
from torch.nn import functional as F

from depthkit.model.registries import EMBEDS
from depthkit.model.roles import assign
from depthkit.registry import Spec


@EMBEDS.register("token")
class TokenEmbedding(nn.Module):
    """One learned vector a token; its std is the model's `embedding_std`."""

    equation = "x_0 = scale * weight[id]"
    source = "the scale sqrt(dim) of tied embeddings: arXiv:1706.03762, section 3.4"

    class Config(Spec):
        """Settings of `token`."""

        scale: PositiveFloat | Literal["sqrt_dim"] = 1.0
        """Multiplies the vectors on their way in, and not as the matrix of a tied head."""

    def __init__(self, config: Any, dim: int, vocab_size: int):
        super().__init__()
        self.scale = dim**0.5 if config.scale == "sqrt_dim" else float(config.scale)
        self.weight = nn.Parameter(torch.empty(vocab_size, dim))
        assign(self, embed="weight")

    def forward(self, ids: Tensor) -> Tensor:
        """Ids `[B, T]` -> `[B, T, D]`."""
        x = F.embedding(ids, self.weight)
        return x if self.scale == 1 else self.scale * x
