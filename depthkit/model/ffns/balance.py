"""Losses and counts of a router, over the tokens that count.

Shapes: B batch, T time, E experts, k experts a token. f is the share of choices an expert got, P the mean
share of its score; the balance loss E sum_e f_e P_e is 1 when both are uniform.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from depthkit.model.ffns.router import Routed


class Counted(NamedTuple):
    """Which tokens count: `mask [B, T]`, `per_sequence [B]` and `total [1]` of them, fp32, at least 1."""

    mask: Tensor
    per_sequence: Tensor
    total: Tensor


def count_tokens(ids: Tensor, counted: Tensor | None) -> Counted:
    """Count the tokens of `ids [B, T]`, all or those where `counted` holds (padding is left out)."""
    mask = torch.ones(ids.shape, device=ids.device) if counted is None else counted.float()
    return Counted(mask, mask.sum(1), mask.sum().clamp(min=1)[None])


def auxiliary(routed: Routed, counted: Counted, config: Any) -> dict[str, Tensor]:
    """The `aux` of one visit, see `MixtureOfExperts`."""
    with torch.autocast(routed.logits.device.type, enabled=False):
        chosen = _choices(routed) * counted.mask[..., None]
        balance = SCOPES[config.scope](chosen / config.top_k, routed.shares, counted)
        partition = routed.logits.logsumexp(-1).square()
        z = (partition * counted.mask).sum() / counted.total[0]
        entropy = -(routed.shares.detach() * routed.shares.detach().clamp(min=1e-30).log()).sum(-1)
        aux = {
            "load": chosen.sum((0, 1)),
            "balance": balance.detach(),
            "entropy": (entropy * counted.mask).sum() / counted.total[0],
            "experts": routed.experts,
        }
        losses = {"balance": (config.balance, balance), "router_z": (config.z_loss, z)}
        return aux | {f"loss/{name}": weight * loss for name, (weight, loss) in losses.items() if weight}


def _choices(routed: Routed) -> Tensor:
    """`[B, T, E]`: 1 where a token chose an expert."""
    return torch.zeros_like(routed.shares).detach().scatter(-1, routed.experts, 1.0)


def _by_sequence(chosen: Tensor, shares: Tensor, counted: Counted) -> Tensor:
    """Mean over sequences, weighted by their counted tokens, of the loss within each."""
    counts = counted.per_sequence.clamp(min=1)[:, None]
    f = chosen.sum(1) / counts
    p = (shares * counted.mask[..., None]).sum(1) / counts
    return (shares.shape[-1] * (f * p).sum(-1) * counted.per_sequence).sum() / counted.total[0]


def _by_batch(chosen: Tensor, shares: Tensor, counted: Counted) -> Tensor:
    """The loss over all tokens of the micro-batch together."""
    f = chosen.sum((0, 1)) / counted.total
    p = (shares * counted.mask[..., None]).sum((0, 1)) / counted.total
    return shares.shape[-1] * (f * p).sum()


SCOPES = {"sequence": _by_sequence, "batch": _by_batch}
"""Over what the balance loss is taken."""
