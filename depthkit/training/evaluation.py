"""Held-out loss: every token scored once, token-weighted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from depthkit.data import Data
from depthkit.model import Transformer


@dataclass(frozen=True)
class Evaluation:
    """Loss on held-out text."""

    val_loss: float
    """Nats per token."""
    bits_per_byte: float | None
    """Bits per byte of text; None when the tokenizer cannot say how many bytes a token stands for."""
    tokens: int
    """Tokens scored."""


@torch.no_grad()
def evaluate(
    model: Transformer, data: Data, batch_size: int, max_tokens: int | None = None, autocast: bool = False
) -> Evaluation:
    """Mean loss over the held-out text, or over about `max_tokens` tokens spread evenly over it.

    The model is left in the mode it was in.
    """
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    nats, tokens, num_bytes = torch.zeros((), dtype=torch.float64, device=device), 0, 0
    for batch in data.validation(batch_size, max_tokens):
        tokens, num_bytes = tokens + batch.num_scored, num_bytes + batch.num_bytes
        batch = batch.to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast):
            losses = model.token_losses(batch.ids, batch.targets, batch.documents)
        nats += losses.double().sum()
    model.train(training)
    total = nats.item()
    bits = total / math.log(2) / num_bytes if num_bytes else None
    return Evaluation(total / tokens, bits, tokens)
