"""Plain forwards of the small models, with their visits as one likes."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.utilization import models

ALTERING = [
    "branch_ablation",
    "mean_ablation",
    "resample_ablation",
    "loop_ablation",
    "block_drop",
    "greedy_drop",
    "swap",
    "order",
    "future_effect",
    "local_effect",
    "output_effect",
    "routing_change",
]
"""Probes that run something else than the model as it is."""


@torch.no_grad()
def end(model, ids, order):
    """The last state [N, T, D] when the visits are these layers in this order."""
    state = model.embed(ids)
    for index in order:
        state = model.visit(model.layers[index], state)
    return state


@torch.no_grad()
def states(model, ids):
    """h_0 .. h_L of the model as it is."""
    return [end(model, ids, model.order[:visit]) for visit in range(len(model.order) + 1)]


@torch.no_grad()
def onward(model, state, first):
    """The last state when visits from `first` on run on `state`."""
    for index in model.order[first:]:
        state = model.visit(model.layers[index], state)
    return state


@torch.no_grad()
def loss(model, state, windows):
    """Mean nats a token."""
    return F.cross_entropy(model.read_out(state).double().flatten(0, 1), windows[:, 1:].flatten()).item()


def cost(model, windows, order):
    """Loss with the visits in another order, minus the model's own."""
    intact, altered = (loss(model, end(model, windows[:, :-1], o), windows) for o in (model.order, order))
    return altered - intact


def twins(seed=1):
    """Four layers, of which those in the middle are equal."""
    torch.manual_seed(seed)
    twin = models.Mixing()
    return models.Model([models.Mixing(), twin, twin, models.Mixing()], [0, 1, 1, 3], seed)
