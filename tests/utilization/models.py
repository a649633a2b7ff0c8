"""Small residual models whose answers are known, and the ways real models call their layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VOCAB, DIM = 13, 8


class Identity(nn.Module):
    """Adds nothing."""

    def forward(self, h: Tensor) -> Tensor:
        return h.clone()


class Scale(nn.Module):
    """Multiplies the stream, so its write is (factor - 1) h."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, h: Tensor) -> Tensor:
        return h * self.factor


class Linear(nn.Module):
    """Replaces the stream by a linear map of it."""

    def __init__(self, matrix: Tensor):
        super().__init__()
        self.matrix = nn.Parameter(matrix)

    def forward(self, h: Tensor) -> Tensor:
        return h @ self.matrix.T


class Add(nn.Module):
    """Adds the same vector everywhere."""

    def __init__(self, vector: Tensor):
        super().__init__()
        self.vector = nn.Parameter(vector)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.vector


class Mixing(nn.Module):
    """A causal non-linear layer: each token sees the mean of its past."""

    def __init__(self, dim: int = DIM, size: float = 0.5, dropout: float = 0.0):
        super().__init__()
        self.inner, self.outer = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.inner.weight, std=size)
        nn.init.normal_(self.outer.weight, std=size)

    def forward(self, h: Tensor) -> Tensor:
        count = torch.arange(1, h.shape[1] + 1, device=h.device, dtype=h.dtype)[None, :, None]
        past = h.cumsum(1) / count
        return h + self.dropout(self.outer(torch.tanh(self.inner(h + past))))


class TupleOut(Mixing):
    """Returns a tuple, as layers of older Hugging Face models do."""

    def forward(self, h: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return super().forward(h), None


class Keyword(Mixing):
    """Takes the state by keyword beside a mask, as some Hugging Face models call their layers."""

    def forward(self, *, attention_mask: Tensor, hidden_states: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(hidden_states) * attention_mask


class InPlace(nn.Module):
    """Writes into the tensor it was given."""

    def forward(self, h: Tensor) -> Tensor:
        return h.mul_(1.5)


class Model(nn.Module):
    """Embedding, layers called in an order, a final norm, a head.

    `order` lists the layer of each visit, so a repeated index is a shared layer.
    """

    def __init__(
        self, layers: list[nn.Module], order: list[int] | None = None, seed: int = 0, dim: int = DIM
    ):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.layers = nn.ModuleList(layers)
        self.order = list(range(len(layers))) if order is None else order
        self.embed = nn.Embedding(VOCAB, dim)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, VOCAB, bias=False)
        with torch.no_grad():
            self.embed.weight.copy_(torch.randn(VOCAB, dim, generator=generator))
            self.head.weight.copy_(torch.randn(VOCAB, dim, generator=generator))

    def visit(self, layer: nn.Module, h: Tensor) -> Tensor:
        if isinstance(layer, Keyword):
            return layer(attention_mask=torch.ones_like(h[..., :1]), hidden_states=h)
        out = layer(h)
        return out[0] if isinstance(out, tuple) else out

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        for index in self.order:
            h = self.visit(self.layers[index], h)
        return self.read_out(h)

    def read_out(self, h: Tensor) -> Tensor:
        return 5.0 * torch.tanh(self.head(self.norm(h)) / 5.0)  # a soft cap belongs to the head path


def mixing(depth: int, kind: type[Mixing] = Mixing, seed: int = 0, order: list[int] | None = None) -> Model:
    """A model of random non-linear layers."""
    torch.manual_seed(seed)
    return Model([kind() for _ in range(depth)], order, seed)


def tokens(count: int = 6, length: int = 12, seed: int = 0, vocab: int = VOCAB) -> Tensor:
    """[count, length + 1] random ids."""
    return torch.randint(0, vocab, (count, length + 1), generator=torch.Generator().manual_seed(seed))
