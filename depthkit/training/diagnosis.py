"""Where in the depth of a model numbers stop being finite."""

from __future__ import annotations

import torch
from torch import Tensor

from depthkit.data import Batch
from depthkit.model import Transformer, Visit
from depthkit.training.parallel.norms import local
from depthkit.training.parallel.ranks import ALONE, Ranks
from depthkit.training.step import forward


def first_non_finite(
    model: Transformer, batch: Batch, step: int, autocast: bool, ranks: Ranks = ALONE
) -> str:
    """Run one micro-batch again and say, in words, where the first non-finite value appears.

    Forward values are looked at in order of depth, then gradients in the order the backward pass reaches
    them, which is from the last visit to the first. Gradients are cleared afterwards. Every rank is given its
    slice of the micro-batch; the first rank that finds something is believed by all.
    """
    found = [words for words in ranks.gather(_own(model, batch, step, autocast, ranks)) if words]
    return found[0] if found else "no visit of the first micro-batch when it is run again"


def _own(model: Transformer, batch: Batch, step: int, autocast: bool, ranks: Ranks) -> str | None:
    """Where in this rank's slice."""
    forwards: list[str] = []
    backwards: list[str] = []

    def observe(visit: Visit, before: Tensor, after: Tensor) -> None:
        if not forwards and visit.index == 0 and not _finite(before):
            forwards.append("the embedding")
        if not forwards and not _finite(after):
            forwards.append(_words(visit))
        after.register_hook(lambda gradient: _note(visit, gradient, backwards))

    output = forward(model, batch, step, autocast, observe)
    assert output.loss is not None
    if not forwards and not _finite(output.loss):
        forwards.append("the read-out after the last visit")
    if ranks.largest(len(forwards)):  # then no rank goes on, since the backward pass takes all of them
        return f"{forwards[0]} (forward pass)" if forwards else None
    output.loss.backward()
    found = backwards[0] if backwards else _parameter(model)
    model.zero_grad(set_to_none=True)
    return f"{found} (backward pass)" if found else None


def _note(visit: Visit, gradient: Tensor, found: list[str]) -> None:
    if not found and not _finite(gradient):
        found.append(_words(visit))


def _parameter(model: Transformer) -> str | None:
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not _finite(parameter.grad):
            return f"parameter {name}"
    return None


def _words(visit: Visit) -> str:
    return f"visit {visit.index} (key {visit.key}, layer {visit.layer}, block {visit.block})"


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(local(tensor)).all())
