"""The same architecture with its weights drawn anew: what depth does before any training."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from depthkit.model import Transformer, unroll
from depthkit.registry import Spec
from depthkit.utilization.nulls import NULLS
from depthkit.utilization.subject import Subject


@NULLS.register("random_init")
class RandomInit:
    """The same architecture, weights drawn anew as before training."""

    class Config(Spec):
        """No settings."""

    words = "a random initialisation of the same architecture"

    def __init__(self, config: Any):
        self.config = config

    def of(self, subject: Subject, seed: int) -> Subject:
        """A second model beside the first, seen in the same way.

        depthkit's models and Hugging Face models are built from their config; of any other module every
        part is asked to reset itself.

        Raises:
            ValueError: a part of the model cannot draw its weights anew.
        """
        model = subject.model
        if isinstance(model, Transformer):
            fresh = _own(model, seed)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                fresh = _from_config(model) if hasattr(model, "_from_config") else _reset(model)
        return subject.like(fresh.to(device=subject.device, dtype=subject.dtype))


def _own(model: Transformer, seed: int) -> nn.Module:
    fresh = Transformer(model.config, seed)
    return fresh if len(fresh.layers) == len(model.layers) else unroll(fresh)


def _from_config(model: Any) -> nn.Module:
    return type(model)._from_config(copy.deepcopy(model.config))


def _reset(model: nn.Module) -> nn.Module:
    fresh = copy.deepcopy(model)
    for name, module in fresh.named_modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
        elif any(True for _ in module.parameters(recurse=False)):
            kind = type(module).__name__
            raise ValueError(f"null random_init: {name or 'the model'} ({kind}) has no reset_parameters()")
    return fresh
