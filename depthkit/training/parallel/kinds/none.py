"""One process."""

from __future__ import annotations

from depthkit.training.parallel.base import Parallel
from depthkit.training.parallel.layout import DATA_PARALLEL, Layout, ParallelConfig


@DATA_PARALLEL.register("none")
class NoParallel(Parallel):
    """One process has the whole batch."""

    @classmethod
    def arrange(cls, config: ParallelConfig, world: int) -> Layout:
        """See `Parallel`."""
        if world > 1:
            raise ValueError(
                f"parallel.data: 'none', but torchrun started {world} processes; allowed: auto, ddp, fsdp"
            )
        shard = config.shard or 1
        wanted = config.replicate * shard
        if wanted > 1:
            raise ValueError(
                f"parallel: replicate {config.replicate} x shard {shard} = {wanted}, but there is 1 process; "
                f"use torchrun --nproc-per-node={wanted}, or leave both unset"
            )
        return Layout("none", 1, 1, 1)
