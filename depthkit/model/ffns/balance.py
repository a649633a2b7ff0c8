"""Losses and counts of a router, over the tokens that count.

Shapes: B batch, T time, E experts, k experts a token. f is the share of choices an expert got, P the mean
share of its score; the balance loss E sum_e f_e P_e is 1 when both are uniform.

Ranks that share a batch: rank r has n_r of the n tokens that count, and its whole loss, cross-entropy and
what is added to it, is weighted by w_r = n_r / n before gradients are summed over ranks. For sum_r w_r loss_r
to be the loss of one process that has it all, a rank returns its part s_r / n of the sum over tokens,
divided by w_r: that is s_r / n_r, the mean over its own tokens, and needs no n:

    z-loss, entropy    s_r = sum of the tokens' values
    scope `sequence`   s_r = sum_{b on r} n_b E sum_e f_be P_be        (no sequence is on two ranks)
    scope `batch`      s_r = E sum_e f_e sum_{t on r} p_te             with f of all ranks: c_e / (k n)

Only the last asks the other ranks: for the counts c and n, through which no gradient flows. A rank without
tokens that count returns 0, with weight 0, and takes part. `load` is the rank's own count, to be summed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from depthkit.model.ffns.router import Routed

Reduce = Callable[[Tensor], Tensor]
"""The sum of a tensor over the ranks that share a batch; all of them call it, in the same order."""


class Counted(NamedTuple):
    """Which tokens count: `mask [B, T]`, `per_sequence [B]` and `total [1]` of them, fp32, at least 1."""

    mask: Tensor
    per_sequence: Tensor
    total: Tensor
    reduce: Reduce | None = None
    """None where one process has the whole batch; the three tensors are of this rank's part."""


def count_tokens(ids: Tensor, counted: Tensor | None, reduce: Reduce | None = None) -> Counted:
    """Count the tokens of `ids [B, T]`, all or those where `counted` holds (padding is left out)."""
    mask = torch.ones(ids.shape, device=ids.device) if counted is None else counted.float()
    return Counted(mask, mask.sum(1), mask.sum().clamp(min=1)[None], reduce)


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
    """The loss over all tokens of the micro-batch together, those of all ranks."""
    f = _shares_of_choices(chosen.sum((0, 1)), counted)
    p = (shares * counted.mask[..., None]).sum((0, 1)) / counted.total
    return shares.shape[-1] * (f * p).sum()


def _shares_of_choices(counts: Tensor, counted: Counted) -> Tensor:
    """f `[E]`, of the batch that all ranks share, from this one's counts."""
    if counted.reduce is None:
        return counts / counted.total
    # Not `total`, which is 1 for a rank without tokens that count.
    both = counted.reduce(torch.cat([counts, counted.mask.sum()[None].to(counts)]))
    return both[:-1] / both[-1:].clamp(min=1)


SCOPES = {"sequence": _by_sequence, "batch": _by_batch}
"""Over what the balance loss is taken."""
