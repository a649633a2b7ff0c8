"""What goes into the residual stream."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthkit.model.registries import EMBEDS
from depthkit.model.roles import assign


@EMBEDS.register("token")
class TokenEmbedding(nn.Module):
    """One learned vector a token; its std is the model's `embedding_std`."""

    equation = "x_0 = weight[id]"

    def __init__(self, config: Any, dim: int, vocab_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, dim))
        assign(self, embed="weight")

    def forward(self, ids: Tensor) -> Tensor:
        """Ids `[B, T]` -> `[B, T, D]`."""
        return F.embedding(ids, self.weight)
