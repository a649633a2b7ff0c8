"""Activation checkpointing: what the backward pass computes again instead of keeping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from pydantic import Field
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

import depthkit.kernels.experts  # noqa: F401  registers the operator of the grouped matrix product
from depthkit.model.registries import CHECKPOINTING
from depthkit.model.slab import Slab
from depthkit.registry import Spec


@CHECKPOINTING.register("none")
class NoCheckpointing:
    """Everything the backward pass needs is kept."""

    visits = 1
    """How many consecutive visits are recomputed together."""
    estimated = ""
    """What is to be said about `kept` where it is not exact."""

    def __init__(self, config: Any):
        self.config = config

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        """`function(*args)`."""
        return function(*args)

    def slab(self, count: int) -> Slab | None:
        """Where the inputs of `count` calls are kept: nowhere of their own."""
        return None

    def kept(self, insides: Sequence[int], state: int) -> int:
        """Bytes that the backward pass needs, of visits that keep `insides` and read `state` bytes each."""
        return sum(insides)


class Checkpointing:
    """Recompute in the backward pass; gains are made outside, so no random state needs keeping."""

    visits = 1
    estimated = ""
    context_fn: Any = staticmethod(noop_context_fn)

    def __init__(self, config: Any):
        self.config = config

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        """`function(*args)`, of which only the inputs are kept."""
        return checkpoint(
            function, *args, use_reentrant=False, preserve_rng_state=False, context_fn=self.context_fn
        )

    def slab(self, count: int) -> Slab | None:
        """Where the inputs of `count` calls are kept."""
        return Slab(count)

    def kept(self, insides: Sequence[int], state: int) -> int:
        """What is read every time, and the inside of the visits that keep most while they are recomputed."""
        groups = [insides[start : start + self.visits] for start in range(0, len(insides), self.visits)]
        return len(groups) * state + max(map(sum, groups), default=0)


@CHECKPOINTING.register("block")
class EveryBlock(Checkpointing):
    """Keep what every visit reads; recompute its inside."""

    equation = "memory: one [B, T, D] a visit; time: one more forward"
    source = "arXiv:1604.06174"


@CHECKPOINTING.register("every_k")
class EveryK(Checkpointing):
    """Keep what every k-th visit reads; recompute k visits at a time."""

    equation = "memory: [B, T, D] x depth / k, and the inside of k visits; time: one more forward"
    source = "arXiv:1604.06174"

    class Config(Spec):
        """Settings of `every_k`."""

        k: int = Field(3, ge=1)
        """Visits recomputed together."""

    def __init__(self, config: Any):
        super().__init__(config)
        self.visits = config.k


KEPT = frozenset(
    {
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten.bmm.default,
        torch.ops.depthkit.grouped_linear.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    }
)
"""Operations whose results `selective` keeps: matrix products and attention."""


@CHECKPOINTING.register("selective")
class Selective(Checkpointing):
    """Keep the results of matrix products and attention; recompute what is cheap, norms and activations."""

    equation = "memory: the outputs of matrix products; time: a few percent"
    source = "arXiv:2205.05198"
    estimated = "without checkpointing"
    context_fn = staticmethod(
        partial(create_selective_checkpoint_contexts, lambda *args, **kwargs: _policy(*args))
    )

    def kept(self, insides: Sequence[int], state: int) -> int:
        """No less than that: as much as without checkpointing."""
        return sum(insides)


def _policy(context: Any, operation: Any, *args: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in KEPT else CheckpointPolicy.PREFER_RECOMPUTE
