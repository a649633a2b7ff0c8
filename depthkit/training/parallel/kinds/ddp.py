"""Replicas that average their gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from depthkit.model import Transformer
from depthkit.training.parallel.base import Parallel
from depthkit.training.parallel.layout import DATA_PARALLEL, Layout, ParallelConfig


@DATA_PARALLEL.register("ddp")
class Replicated(Parallel):
    """Every process has the whole model; gradients are averaged while the backward pass goes on."""

    source = "arXiv:2006.15704"

    @classmethod
    def at(cls, world: int) -> type[Parallel]:
        """See `Parallel`."""
        kind: type[Parallel] = cls if world > 1 else DATA_PARALLEL.get("none")
        return kind

    @classmethod
    def arrange(cls, config: ParallelConfig, world: int) -> Layout:
        """See `Parallel`."""
        if config.replicate not in (1, world):
            raise ValueError(
                f"parallel.replicate: {config.replicate}, but ddp has a replica in each of the {world} "
                f"processes; allowed: 1 (unset), {world}"
            )
        if config.shard not in (None, 1):
            raise ValueError(f"parallel.shard: {config.shard}, but ddp shards nothing; allowed: null, 1")
        return Layout("ddp", world, world, 1, config.expert)

    def wrap(self, model: Transformer) -> Callable[..., Any]:
        """See `Parallel`."""
        # Buffers change alike on all ranks, and need no broadcast.
        ignored = [*(name for name, _ in model.named_buffers()), *self.ignored]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
        # What a step of a looped model leaves out (layers of single loops, what only later loops use) differs
        # from step to step, so it is looked for.
        loops = any(segment.longest_loops > 1 for segment in model.config.segments)
        self._wrapped = DistributedDataParallel(model, find_unused_parameters=loops)
        return self._wrapped

    def meeting(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """See `Parallel`."""
        return contextlib.nullcontext() if last else self._wrapped.no_sync()
