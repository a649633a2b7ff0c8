"""Experts spread over processes, together with any way to share the data.

Each of a group of `expert` processes has an equal share of the experts of every layer; tokens travel to them
and back. Ranks that hold the same experts are replicas of each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from depthkit.model import Transformer
from depthkit.model.ffns.moe import expert_parameters, shard_experts
from depthkit.training.parallel.base import Parallel
from depthkit.training.parallel.norms import total_norm
from depthkit.training.parallel.sharded import ShardedCheckpoints


class SpreadExperts(Parallel):
    """`inner` for everything but the experts.

    Args:
        inner: how the rest is shared; it has not sharded anything yet.
    """

    def __init__(self, inner: Parallel):
        super().__init__(inner.layout, inner.ranks)
        self.inner = inner
        self.checkpoints = ShardedCheckpoints(inner.ranks)
        self._model: Any = None

    def shard(self, model: Transformer) -> None:
        """See `Parallel`."""
        shape = (self.layout.world // self.layout.expert, self.layout.expert)
        device = next(model.parameters()).device.type
        self.mesh = init_device_mesh(device, shape, mesh_dim_names=("replica", "expert"))
        shard_experts(model, self.mesh.get_group("expert"))
        self._model = model
        self.inner.ignored = self.names = frozenset(expert_parameters(model))
        self.inner.shard(model)
        for parameter in self._own():
            parameter.expert_mesh = self.mesh  # type: ignore[attr-defined]

    def _own(self) -> Iterator[torch.nn.Parameter]:
        return (p for name, p in self._model.named_parameters() if name in self.names)

    def wrap(self, model: Transformer) -> Callable[..., Any]:
        """See `Parallel`."""
        return self.inner.wrap(model)

    @contextlib.contextmanager
    def meeting(self, last: bool) -> Iterator[None]:
        """See `Parallel`."""
        with self.inner.meeting(last):
            yield
        if last:
            self._meet()

    @torch.no_grad()
    def _meet(self) -> None:
        """Average over all ranks: the way back has added up a group, replicas are still to be."""
        replicas = self.mesh.get_group("replica")
        for parameter in self._own():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=replicas)
                parameter.grad /= self.ranks.size

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """See `Parallel`."""
        own = {id(p.grad) for p in self._own() if p.grad is not None}
        return total_norm([self._spread(g) if id(g) in own else g for g in gradients])

    def _spread(self, tensor: Tensor) -> Tensor:
        spread: Tensor = DTensor.from_local(
            tensor.detach(), self.mesh, (Replicate(), Shard(0)), run_check=False
        )
        return spread

    @contextlib.contextmanager
    def apart(self, model: Transformer) -> Iterator[None]:
        """See `Parallel`."""
        with self.inner.apart(model):
            yield

    def stored(self, name: str, tensor: Tensor) -> Tensor:
        """See `Parallel`."""
        return self._spread(tensor) if self._is_slice(name, tensor) else tensor

    def held(self, name: str, tensor: Tensor) -> Tensor:
        """See `Parallel`."""
        local = isinstance(tensor, DTensor) and self._is_slice(name, tensor)
        return tensor.to_local() if local else tensor  # type: ignore[attr-defined]

    def _is_slice(self, name: str, tensor: Tensor) -> bool:
        # A slice of experts has three dimensions; what else an optimiser keeps of it, such as a count, none.
        return tensor.ndim > 0 and not self.names.isdisjoint({name, name.rpartition("/")[0]})
