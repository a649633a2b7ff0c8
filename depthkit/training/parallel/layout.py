"""The `parallel:` section of a run, and how many processes it divides the work among."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from depthkit.config import Component
from depthkit.model import ModelConfig
from depthkit.registry import Registry, Spec

DATA_PARALLEL = Registry("data parallelism", "depthkit.training.parallel.kinds")
"""Each kind has `at(world)`, the kind to be used among so many processes, and `arrange(config, world)`."""


class ParallelConfig(Spec):
    """How a run is spread over the processes that torchrun starts. Results do not depend on it."""

    data: Annotated[
        Any, Component(DATA_PARALLEL), BeforeValidator(lambda value: "auto" if value is None else value)
    ] = Field("auto", validate_default=True)
    """auto (also null; ddp where there are several processes), ddp, fsdp or none."""
    replicate: int = Field(1, ge=1)
    """With fsdp: how many times the model is stored; above 1, it is sharded within groups of `shard`."""
    shard: int | None = Field(None, ge=1)
    """With fsdp: among how many processes one copy of the model is sharded; null is as many as there are."""
    expert: int = Field(1, ge=1)
    """Among how many processes the experts of every layer are spread; it divides their number."""

    def arranged(self, world: int) -> Layout:
        """The layout among `world` processes.

        Raises:
            ValueError: sizes that do not multiply to, or divide, the number of processes.
        """
        layout: Layout = self.data.component.at(world).arrange(self, world)
        if world % self.expert:
            raise ValueError(f"parallel.expert: {self.expert} does not divide the {world} processes")
        return layout


@dataclass(frozen=True)
class Layout:
    """A run's processes; `world` = `replicate` x `shard`, and each has a share of every batch."""

    kind: str
    """ddp, fsdp or none."""
    world: int
    replicate: int
    shard: int
    expert: int = 1

    def share(self, batch_size: int) -> int:
        """Sequences of a micro-batch that one process has.

        Raises:
            ValueError: it cannot be divided.
        """
        if batch_size % self.world:
            near = max(self.world, batch_size // self.world * self.world)
            raise ValueError(
                f"train.batch_size: {batch_size} cannot be divided among {self.world} processes; "
                f"use a multiple of {self.world}, such as {near}"
            )
        return batch_size // self.world

    def facts(self) -> dict[str, Any]:
        """For environment.json."""
        return asdict(self)

    def __str__(self) -> str:
        experts = f", experts over {self.expert}" if self.expert > 1 else ""
        mesh = f"{self.replicate} replicas x {self.shard} shards"
        return f"{self.kind}, {self.world} processes = {mesh}{experts}"


ONE = Layout("none", 1, 1, 1)
"""One process."""


def check_experts(ranks: int, model: ModelConfig) -> None:
    """Refuse to spread experts among `ranks` processes where there are none, or not as many as divide.

    Raises:
        ValueError: with what would do.
    """
    if ranks == 1:
        return
    mixtures = {name: block.ffn for name, block in model.blocks.items() if hasattr(block.ffn, "num_experts")}
    if not mixtures:
        raise ValueError(f"parallel.expert: {ranks}, but no block has a mixture of experts; allowed: 1")
    for name, ffn in mixtures.items():
        if ffn.num_experts % ranks:
            raise ValueError(
                f"parallel.expert: {ranks} does not divide the {ffn.num_experts} experts of "
                f"model.blocks.{name}.ffn (num_experts)"
            )
