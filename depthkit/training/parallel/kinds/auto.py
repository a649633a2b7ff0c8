"""What fits the number of processes."""

from __future__ import annotations

from depthkit.training.parallel.base import Parallel
from depthkit.training.parallel.layout import DATA_PARALLEL


@DATA_PARALLEL.register("auto")
class Auto(Parallel):
    """`ddp` under torchrun with several processes, else `none`."""

    @classmethod
    def at(cls, world: int) -> type[Parallel]:
        """See `Parallel`."""
        kind: type[Parallel] = DATA_PARALLEL.get("ddp" if world > 1 else "none")
        return kind
