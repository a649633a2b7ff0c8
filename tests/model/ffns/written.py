"""A mixture of experts written out token by token, in float64."""

import math

import torch

from depthkit.model.ffns.router import Visiting
from depthkit.model.registries import FFNS

DIM = 8


def make(seed=0, **settings):
    """A branch with weights large enough that choices are clear."""
    config = FFNS.get("moe").Config(**{"num_experts": 5, "hidden_dim": 6, "backend": "loop", **settings})
    branch = config.component(config, DIM).double()
    generator = torch.Generator().manual_seed(seed)
    for parameter in branch.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    return branch


def inputs(batch=2, time=7, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, time, DIM, dtype=torch.float64, generator=generator).requires_grad_()


def ids(h):
    return torch.zeros(h.shape[:2], dtype=torch.int64)


def expert(x, gate, up, down):
    raised = up @ x
    if gate is None:
        return down @ (0.5 * raised * (1 + torch.erf(raised / math.sqrt(2))))
    opened = gate @ x
    return down @ (opened / (1 + (-opened).exp()) * raised)


def scores(x, weight, config, bias=None):
    """All experts' scores of one token."""
    logits = weight @ x if bias is None else weight @ x + bias
    if config.score == "sigmoid":
        return 1 / (1 + (-logits).exp())
    return logits.exp() / logits.exp().sum()


def choose(s, config, choice_bias=None):
    """The k experts with the largest score, after the balancing bias."""
    ranked = s.detach() if choice_bias is None else s.detach() + choice_bias
    return sorted(range(len(s)), key=lambda e: -ranked[e].item())[: config.top_k]


def reference(branch, h, visiting=None):
    """`[B, T, D]`, one token and one expert at a time."""
    config, visiting = branch.config, visiting or Visiting()
    weight = branch.router.weight if branch.router is not None else visiting.weight
    rows = []
    for x in h.flatten(0, 1):
        s = scores(x, weight, config, visiting.logit_bias)
        chosen = choose(s, config, visiting.choice_bias)
        sums_to_one = config.top_k > 1 if config.renormalise is None else config.renormalise
        total = sum(s[e] for e in chosen) if sums_to_one else 1
        gates = branch.gate if branch.gate is not None else [None] * config.num_experts
        y = sum(
            config.scale * s[e] / total * expert(x, gates[e], branch.up[e], branch.down[e]) for e in chosen
        )
        if branch.shared is not None:
            gate = branch.shared.gate.weight if branch.gate is not None else None
            y = y + expert(x, gate, branch.shared.up.weight, branch.shared.down.weight)
        rows.append(y)
    return torch.stack(rows).view_as(h)


def margin(branch, h, visiting=None):
    """How far the last chosen expert is ahead of the next; choices are then the same in any rounding."""
    config, visiting = branch.config, visiting or Visiting()
    if config.top_k == config.num_experts:
        return 1.0
    weight = branch.router.weight if branch.router is not None else visiting.weight
    gaps = []
    for x in h.detach().flatten(0, 1):
        s = scores(x, weight, config, visiting.logit_bias)
        s = s if visiting.choice_bias is None else s + visiting.choice_bias
        top = s.sort(descending=True).values
        gaps.append((top[config.top_k - 1] - top[config.top_k]).item())
    return min(gaps)
