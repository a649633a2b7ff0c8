"""Parameters, gradients and optimiser state in shards; whole only while they are used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from depthkit.model import Transformer
from depthkit.training.parallel.base import Parallel
from depthkit.training.parallel.layout import DATA_PARALLEL, Layout, ParallelConfig
from depthkit.training.parallel.ranks import ALONE, Ranks
from depthkit.training.parallel.sharded import ShardedCheckpoints


@DATA_PARALLEL.register("fsdp")
class FullySharded(Parallel):
    """Every process has a shard of every parameter (FSDP2); with replicas, one shard in each of them (HSDP).

    Activation checkpointing acts within a unit and compiled blocks are its inside, so they come first. A
    layer is a unit, a looped segment as a whole is one, `Schedules` is one, and the rest is the root.
    """

    source = "arXiv:2304.11277"

    def __init__(self, layout: Layout, ranks: Ranks = ALONE):
        super().__init__(layout, ranks)
        self.checkpoints = ShardedCheckpoints(ranks)

    @classmethod
    def at(cls, world: int) -> type[Parallel]:
        """See `Parallel`."""
        kind: type[Parallel] = cls if world > 1 else DATA_PARALLEL.get("none")
        return kind

    @classmethod
    def arrange(cls, config: ParallelConfig, world: int) -> Layout:
        """See `Parallel`."""
        shard = config.shard or max(1, world // config.replicate)
        if config.replicate * shard != world:
            raise ValueError(
                f"parallel: replicate {config.replicate} x shard {shard} is {config.replicate * shard}, but "
                f"torchrun started {world} processes"
            )
        return Layout("fsdp", world, config.replicate, shard, config.expert)

    def shard(self, model: Transformer) -> None:
        """See `Parallel`."""
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

        super().shard(model)
        options: Any = {
            "mesh": self._mesh(next(model.parameters()).device.type),
            "mp_policy": MixedPrecisionPolicy(cast_forward_inputs=False),
            "ignored_params": {p for name, p in model.named_parameters() if name in self.ignored},
        }
        for layers, looped in units(model):
            # A looped unit is needed again at once: it stays whole until its backward pass is over.
            fully_shard(layers, reshard_after_forward=not looped, **options)
        for layer in model.watching:  # what norms see before the visits is not a forward
            register_fsdp_forward_method(model.block(layer), "look")
        # What these hold is read by methods other than forward, before and after it.
        if any(True for _ in model.schedules.parameters()):
            fully_shard(model.schedules, reshard_after_forward=False, **options)
        fully_shard(model, reshard_after_forward=False, **options)

    def _mesh(self, device: str) -> Any:
        from torch.distributed.device_mesh import init_device_mesh

        shape, names = (self.layout.replicate, self.layout.shard), ("replicate", "shard")
        if self.layout.replicate == 1:
            shape, names = shape[1:], names[1:]  # type: ignore[assignment]
        return init_device_mesh(device, shape, mesh_dim_names=names)

    @contextlib.contextmanager
    def apart(self, model: Transformer) -> Iterator[None]:
        """See `Parallel`: what a forward has gathered is let go of, or the optimiser would not see shards."""
        from torch.distributed.fsdp import FSDPModule

        try:
            yield
        finally:
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()


def units(model: Transformer) -> Iterator[tuple[list[nn.Module], bool]]:
    """Layers that are gathered together, and whether they are looped.

    Where every loop has layers of its own, of which a step may leave some out, each layer is a unit.
    """
    segments = model.config.longest_plan().layer_segments
    for segment in model.config.segments:
        layers = [model.layers[i] for i, name in enumerate(segments) if name == segment.name]
        if segment.shared and segment.longest_loops > 1:
            yield layers, True
        else:
            yield from (([layer], False) for layer in layers)
