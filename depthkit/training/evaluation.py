"""Held-out loss: every token scored once, token-weighted; for a task, the share of right answers too."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from depthkit.data import Batch, Data
from depthkit.model import Transformer
from depthkit.training.parallel.ranks import ALONE, Ranks, summed
from depthkit.training.parallel.shares import held_out_share


@dataclass(frozen=True)
class Evaluation:
    """Loss on held-out text or problems."""

    val_loss: float
    """Nats per token."""
    bits_per_byte: float | None
    """Bits per byte of text; None when the tokenizer cannot say how many bytes a token stands for."""
    tokens: int
    """Tokens scored."""
    accuracy_by_hops: dict[str, float] | None = None
    """Share of answers that are the model's first choice, by the number of hops (which is the number of
    loops the batch asked for); None for data without hops."""


@torch.no_grad()
def evaluate(
    model: Transformer,
    data: Data,
    batch_size: int,
    max_tokens: int | None = None,
    autocast: bool = False,
    ranks: Ranks = ALONE,
) -> Evaluation:
    """Mean loss over the held-out text or task, or over about `max_tokens` tokens spread evenly over it.

    Each batch is run with the loop count it asks for, its sequences divided among the ranks. The model is
    left in the mode it was in.
    """
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    nats, tokens, num_bytes = torch.zeros((), dtype=torch.float64, device=device), 0, 0
    right, asked = Counter[int](), Counter[int]()
    for batch in data.validation(batch_size, max_tokens):
        tokens, num_bytes = tokens + batch.num_scored, num_bytes + batch.num_bytes
        if batch.loops is not None:
            asked[batch.loops] += batch.num_scored
        batch = held_out_share(batch, ranks).to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast):
            losses = model.token_losses(batch.ids, batch.targets, batch.documents, loops=batch.loops)
            if batch.loops is not None:
                right[batch.loops] += int(_right(model, batch).sum())
        nats += losses.double().sum()
    model.train(training)
    total = ranks.sum(nats).item()
    bits = total / math.log(2) / num_bytes if num_bytes else None
    found = summed(ranks, [torch.tensor(right[hops]) for hops in asked])
    accuracy = {str(hops): int(count) / asked[hops] for hops, count in zip(asked, found, strict=True)}
    return Evaluation(total / tokens, bits, tokens, accuracy or None)


def _right(model: Transformer, batch: Batch) -> Tensor:
    """[B, T] whether the most likely token is the target; false where nothing is scored."""
    hidden = model(batch.ids, documents=batch.documents, loops=batch.loops).hidden
    return model.logits(hidden).argmax(-1) == batch.targets
