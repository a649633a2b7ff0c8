"""Which experts a token goes to, and with what weight.

Shapes: B batch, T time, D width, E experts, k experts a token, R rows of a bank (visits).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from depthkit.model.plan import Key, Plan
from depthkit.model.roles import assign
from depthkit.model.rows import Rows


class Visiting(NamedTuple):
    """What one visit brings along: a router `[E, D]`, a bias on its logits and one on the choice, `[E]`."""

    weight: Tensor | None = None
    logit_bias: Tensor | None = None
    choice_bias: Tensor | None = None


class Routed(NamedTuple):
    """The routing of one visit, fp32."""

    logits: Tensor
    """`[B, T, E]`."""
    shares: Tensor
    """`[B, T, E]` scores that sum to 1 over experts, for balance and entropy."""
    experts: Tensor
    """`[B, T, k]` int64."""
    weights: Tensor
    """`[B, T, k]`."""


class Router(nn.Module):
    """A linear router without bias, `[E, D]`."""

    def __init__(self, experts: int, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, dim))
        assign(self, router="weight")


class RouterBank(nn.Module):
    """What routers have of their own at every visit; owned by `Schedules`.

    The balancing bias is a buffer: it has no gradient, moves once an optimiser step, and is saved with the
    model.
    """

    def __init__(self, config: Any, dim: int, plan: Plan):
        super().__init__()
        self.rate = config.bias_rate
        self.rows = Rows(plan)
        rows, experts = len(self.rows), config.num_experts
        self.weight = nn.Parameter(torch.empty(rows, experts, dim)) if config.router == "per_loop" else None
        self.logit_bias = nn.Parameter(torch.empty(rows, experts)) if config.router == "shared_bias" else None
        self.choice_bias: Tensor | None
        self.register_buffer("choice_bias", torch.empty(rows, experts) if self.rate else None)
        roles = {"weight": "router", "logit_bias": "bias"}
        present = {name: role for name, role in roles.items() if getattr(self, name) is not None}
        assign(self, **{role: name for name, role in present.items()})

    def reset_parameters(self) -> None:
        """Biases start at zero; routers are drawn by role, each on its own."""
        for bias in (self.logit_bias, self.choice_bias):
            if bias is not None:
                nn.init.zeros_(bias)

    def forward(self, plan: Plan) -> list[Visiting]:
        """One entry for every visit of `plan`; a loop never trained has the last one's, with a warning."""
        tables = [self.weight, self.logit_bias, self.choice_bias]
        columns = [[None] * len(self.rows) if t is None else list(t.unbind(0)) for t in tables]
        return [Visiting(*(column[row] for column in columns)) for row in self.rows.of(plan)]

    @torch.no_grad()
    def after_step(self, loads: Mapping[Key, Tensor]) -> None:
        """Move the balancing bias: b_e += rate sign(mean load - load_e), from the loads `[E]` of one step."""
        if self.choice_bias is None:
            return
        for key, load in loads.items():
            if key in self.rows:
                counts = load.to(self.choice_bias)
                self.choice_bias[self.rows.at(key)] += self.rate * (counts.mean() - counts).sign()


def route(h: Tensor, weight: Tensor, visiting: Visiting, config: Any) -> Routed:
    """Route `h [B, T, D]`; everything in fp32 (or fp64), whatever autocast says."""
    precise = torch.promote_types(h.dtype, torch.float32)
    with torch.autocast(h.device.type, enabled=False):
        logits = h.to(precise) @ weight.to(precise).T
        if visiting.logit_bias is not None:
            logits = logits + visiting.logit_bias
        scores = logits.softmax(-1) if config.score == "softmax" else logits.sigmoid()
        choice = scores.detach() if visiting.choice_bias is None else scores.detach() + visiting.choice_bias
        experts = choice.topk(config.top_k, dim=-1).indices
        weights = scores.gather(-1, experts)
        if config.renormalises:
            weights = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(precise).tiny)
        shares = scores if config.score == "softmax" else scores / scores.sum(-1, keepdim=True)
    return Routed(logits, shares, experts, weights * config.scale)


def selection_overlap(a: Tensor, b: Tensor) -> Tensor:
    """Share of common experts of two selections `[..., k]` without repetitions -> `[...]`."""
    return (a[..., :, None] == b[..., None, :]).any(-1).to(torch.float32).mean(-1)
