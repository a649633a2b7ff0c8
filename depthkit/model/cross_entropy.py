"""Cross-entropy straight from hidden states: the logits of all tokens never exist at once.

Shapes: N tokens, D width, V vocabulary. A target of -100 is not scored.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

IGNORE = -100


class CrossEntropy(NamedTuple):
    """Sums over scored tokens, fp32 scalars; `objective` (nats + z_loss sum logsumexp^2) has gradients."""

    objective: Tensor
    nats: Tensor


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int, z_loss: float = 0.0
) -> CrossEntropy:
    """Summed cross-entropy of `hidden [N, D] @ weight [V, D]^T` against `targets [N]`.

    At most `chunk` x V logits exist at a time, in fp32; gradients are formed in the forward pass. Matrix
    products run in the autocast dtype where autocast is on.
    """
    return CrossEntropy(*_Chunked.apply(hidden, weight, targets, chunk, z_loss))


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int, z_loss: float
    ) -> tuple[Tensor, Tensor]:
        dtype = _matmul_dtype(hidden)
        matrix = weight.to(dtype)
        need = any(ctx.needs_input_grad[:2])
        d_hidden = torch.empty_like(hidden) if need else None
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if need else None
        objective = hidden.new_zeros((), dtype=torch.float32)
        nats = torch.zeros_like(objective)
        for start in range(0, len(hidden), chunk):
            rows = slice(start, start + chunk)
            h, target = hidden[rows].to(dtype), targets[rows]
            logits = (h @ matrix.T).float()
            scored = target != IGNORE
            index = target.clamp(min=0)[:, None]
            # One exponential serves the loss and its gradient; both are over the V logits of every token.
            target_logits, largest = logits.gather(1, index)[:, 0], logits.amax(-1, keepdim=True)
            exponentials = logits.sub_(largest).exp_()
            total = exponentials.sum(-1)
            lse = total.log() + largest[:, 0]
            loss = torch.where(scored, lse - target_logits, 0.0).sum()
            nats += loss
            objective += loss + z_loss * torch.where(scored, lse, 0.0).square().sum()
            if d_hidden is None or d_weight is None:
                continue
            d_logits = exponentials.mul_(((1 + 2 * z_loss * lse) / total)[:, None])
            d_logits.scatter_add_(1, index, torch.full_like(lse, -1.0)[:, None])
            d_logits = d_logits.mul_(scored[:, None]).to(dtype)
            d_hidden[rows] = d_logits @ matrix
            d_weight += (d_logits.T @ h).float()
        ctx.save_for_backward(*([d_hidden, d_weight.to(weight.dtype)] if need else []))  # type: ignore[union-attr]
        ctx.mark_non_differentiable(nats)
        return objective, nats

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_objective: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden * d_objective.to(d_hidden.dtype), d_weight * d_objective, None, None, None


def _matmul_dtype(hidden: Tensor) -> torch.dtype:
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype


@torch.no_grad()
def token_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
    """Nats of every token `[N]`, fp32, 0 where the target is -100; no gradient."""
    dtype = _matmul_dtype(hidden)
    matrix = weight.to(dtype)
    parts = [
        F.cross_entropy((h.to(dtype) @ matrix.T).float(), target, ignore_index=IGNORE, reduction="none")
        for h, target in zip(hidden.split(chunk), targets.split(chunk), strict=True)
    ]
    return torch.cat(parts)
