"""Text one token at a time, with a cache of keys and values by visit.

Shapes: B batch, T positions of the prompt, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from depthkit.model.cache import Cache
from depthkit.model.transformer import Loops, Transformer


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn from the logits.

    Raises:
        ValueError: a temperature below 0, or fewer than one token to choose from.
    """

    temperature: float = 0.0
    """0 takes the likeliest token; 1 draws from the model's own distribution."""
    top_k: int | None = None
    """Draw among the likeliest tokens only."""
    seed: int = 0
    """Of the draws."""

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature: {self.temperature} is below 0; 0 takes the likeliest token")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k: {self.top_k} is below 1")

    def choose(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        """Logits `[B, V]` -> ids `[B, 1]`."""
        if self.temperature == 0:
            return logits.argmax(-1, keepdim=True)
        if self.top_k is not None:
            least = logits.topk(min(self.top_k, logits.shape[-1])).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        shares = (logits.float() / self.temperature).softmax(-1).cpu()
        return torch.multinomial(shares, 1, generator=generator).to(logits.device)


@torch.no_grad()
def generate(
    model: Transformer,
    prompt: Tensor,
    count: int,
    sampling: Sampling = Sampling(),
    prompt_loops: Loops = None,
    loops: Loops = None,
) -> Iterator[Tensor]:
    """Continue a prompt.

    Args:
        model: in evaluation mode.
        prompt: `[B, T]` ids, T at least 1.
        count: tokens to add.
        sampling: how they are drawn.
        prompt_loops, loops: loop counts for the prompt and for what follows; None is the nominal count.

    Yields:
        Ids `[B, 1]`, one after the other.
    """
    generator = torch.Generator().manual_seed(sampling.seed)
    cache = Cache(capacity=prompt.shape[1] + count)
    ids, used = prompt, prompt_loops
    for _ in range(count):
        hidden = model(ids, loops=used, cache=cache).hidden[:, -1]
        ids, used = sampling.choose(model.logits(hidden), generator), loops
        yield ids
