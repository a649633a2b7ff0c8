"""What a way to share the work does at each point of a run; the base does what one process needs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from depthkit.model import Transformer
from depthkit.model.ffns.moe import MixtureOfExperts
from depthkit.training.parallel.layout import ONE, Layout, ParallelConfig
from depthkit.training.parallel.norms import total_norm
from depthkit.training.parallel.ranks import ALONE, Ranks
from depthkit.training.parallel.writing import Checkpoints


class Parallel:
    """One way to share the work.

    The trainer calls `shard` before the optimiser is built, `wrap` after, `meeting` around the backward pass
    of every micro-batch, `norm` on the gradients, and `apart` around forwards outside of training. What it
    saves goes through `checkpoints`.

    Args:
        layout: who does what.
        ranks: the processes.
    """

    def __init__(self, layout: Layout, ranks: Ranks = ALONE):
        self.layout, self.ranks = layout, ranks
        self.ignored: frozenset[str] = frozenset()
        """Parameters that are shared out elsewhere."""
        self.checkpoints = Checkpoints(ranks)

    @classmethod
    def at(cls, world: int) -> type[Parallel]:
        """The kind that is used among so many processes."""
        return cls

    @classmethod
    def arrange(cls, config: ParallelConfig, world: int) -> Layout:
        """The layout of `config` among `world` processes.

        Raises:
            ValueError: it asks for another number of them.
        """
        raise NotImplementedError

    def shard(self, model: Transformer) -> None:
        """Give every rank its part of the parameters; let routers know the loads of all ranks."""
        if self.ranks.size > 1:
            for module in model.modules():
                if isinstance(module, MixtureOfExperts):
                    module.reduce_over_ranks = self.ranks.sum

    def wrap(self, model: Transformer) -> Callable[..., Any]:
        """What to call for a forward in training."""
        return model

    def meeting(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Around forward and backward of a micro-batch; after the `last` one gradients are those of all."""
        return contextlib.nullcontext()

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of all gradients together."""
        return total_norm(gradients)

    @contextlib.contextmanager
    def apart(self, model: Transformer) -> Iterator[None]:
        """Around forwards that no backward pass follows."""
        yield

    def stored(self, name: str, tensor: Tensor) -> Tensor:
        """How a checkpoint sees a tensor of this rank: a part of a whole is a `DTensor`.

        Args:
            name: a parameter or buffer, or `parameter/field` of the optimiser.
            tensor: what this rank has under that name.
        """
        return tensor

    def held(self, name: str, tensor: Tensor) -> Tensor:
        """What this rank has of a tensor that is laid out as `stored` says."""
        return tensor


def one_process() -> Parallel:
    """No parallelism."""
    return Parallel(ONE)


def device_of(model: Transformer) -> torch.device:
    """Where a model is."""
    return next(model.parameters()).device
