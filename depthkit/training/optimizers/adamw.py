"""AdamW, fused."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field, Strict, field_validator

from depthkit.registry import Spec
from depthkit.training.optim import OPTIMIZERS
from depthkit.training.optimizers.flat import FlatAdamW


@OPTIMIZERS.register("adamw")
class AdamW:
    """Adam with decoupled weight decay (arXiv 1711.05101), in PyTorch's fused kernel."""

    num_states = 2
    """Tensors of a parameter's size that are kept for it."""

    class Config(Spec):
        """Settings of AdamW."""

        betas: Annotated[tuple[float, float], Strict(False)] = (0.9, 0.95)
        """Decay rates of the running mean and of the running square of the gradient, each in [0, 1)."""
        eps: float = Field(1e-8, gt=0)
        """Added to the root of the running square."""
        weight_decay: float = Field(0.1, ge=0)
        """Decay of matrices, times the learning rate; embeddings, norms and biases have none."""

        flat: bool | None = None
        """Keep parameters and moments in flat buffers, so that many small ones cost little; null does so on
        CPUs, where every tensor costs time, unless loops have layers of their own, which steps may skip, or
        parameters are sharded."""

        @field_validator("betas")
        @classmethod
        def _rates(cls, betas: tuple[float, float]) -> tuple[float, float]:
            if not all(0 <= beta < 1 for beta in betas):
                raise ValueError("each must be at least 0 and below 1")
            return betas

    def __init__(self, config: Config):
        self.config = config

    def build(self, groups: list[dict[str, Any]], lr: float) -> torch.optim.Optimizer:
        """An optimiser over `groups`, each with its multipliers on lr, eps and weight decay."""
        settings = [
            {
                **group,
                "lr": lr * group["lr_multiplier"],
                "eps": self.config.eps * group["eps_multiplier"],
                "weight_decay": self.config.weight_decay * group["decay_multiplier"],
            }
            for group in groups
        ]
        devices = {p.device.type for group in groups for p in group["params"]}
        sharded = any(group.get("sharded") for group in groups)
        suits = devices == {"cpu"} and not sharded and not any(group["conditional"] for group in groups)
        flat = suits if self.config.flat is None else self.config.flat
        if flat and sharded:
            raise ValueError("train.optimizer.flat: true, but parameters are in shards; use null or false")
        if flat:
            return FlatAdamW(settings, self.config.betas)
        return torch.optim.AdamW(settings, betas=self.config.betas, fused=True)
