"""The trained layers in another order: what their place is worth."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from depthkit.registry import Spec
from depthkit.utilization.nulls import NULLS
from depthkit.utilization.subject import Subject

Signature = tuple[tuple[str, torch.Size, torch.dtype], ...]


@NULLS.register("shuffled_layers")
class ShuffledLayers:
    """The trained layers in a random order.

    Weights move; what belongs to a place (masks, windows, gains, cache slots) stays. Only layers with the
    same parts and shapes change places, so a mixture of experts never comes where a dense layer stood.
    """

    class Config(Spec):
        """No settings."""

    words = "the same layers in a random order"

    def __init__(self, config: Any):
        self.config = config

    def of(self, subject: Subject, seed: int) -> Subject:
        """A second model beside the first, seen in the same way.

        Raises:
            ValueError: no two layers are alike, so there is nothing to shuffle.
        """
        names = {module: name for name, module in subject.model.named_modules()}
        shuffled = copy.deepcopy(subject.model)
        layers = [shuffled.get_submodule(names[layer]) for layer in subject.layers]
        groups = [group for group in alike(layers) if len(group) > 1]
        if not groups:
            kinds = f"{len(layers)} layers, no two of the same parts and shapes"
            raise ValueError(f"null shuffled_layers: {subject.name} has nothing to shuffle: {kinds}")
        generator = torch.Generator().manual_seed(seed)
        for group in groups:
            _shuffle(group, generator)
        return subject.like(shuffled)


def alike(layers: list[nn.Module]) -> list[list[nn.Module]]:
    """The layers in groups of the same parts and shapes, in their own order."""
    groups: dict[Signature, list[nn.Module]] = {}
    for layer in layers:
        state = sorted(layer.state_dict().items())
        signature = tuple((name, value.shape, value.dtype) for name, value in state)
        groups.setdefault(signature, []).append(layer)
    return list(groups.values())


def _shuffle(layers: list[nn.Module], generator: torch.Generator) -> None:
    """Give every layer the weights of another order of them, never the one they have."""
    states = [{name: value.clone() for name, value in layer.state_dict().items()} for layer in layers]
    order = list(range(len(layers)))
    while order == sorted(order):
        order = torch.randperm(len(layers), generator=generator).tolist()
    for layer, source in zip(layers, order, strict=True):
        layer.load_state_dict(states[source])
