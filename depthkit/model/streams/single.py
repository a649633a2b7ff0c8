"""The ordinary residual stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from depthkit.model.gains import SiteGains, scaled
from depthkit.model.plan import Plan
from depthkit.model.registries import STREAMS
from depthkit.registry import Spec


@STREAMS.register("single")
class SingleStream(nn.Module):
    """One residual stream: the state is the tensor `[B, T, D]` itself.

    The contract of every stream: `open` makes a state from the embedding, `read` gives a branch its input
    and whatever `write` needs to put the branch's output back, `map` applies a function to the carried
    tensors, `close` gives the tensor the head reads. A state is a tensor or a tuple of tensors, batch first,
    whose shapes do not change over visits.

    What differs by visit comes from `bank(plan)`: a module that `Schedules` owns, whose `forward(plan)` gives
    for every visit the pair of `maps` that `read` and `write` get at its two sites, and whose `readout()`
    gives what `close` gets. None where a stream has no such parameters.
    """

    equation = "x <- skip * x + write * y"
    source = "arXiv:1512.03385"
    sums: ClassVar[bool] = True
    """Whether the second branch of a visit sees skip * (what the first saw) + write * y, and nothing else."""

    class Config(Spec):
        """Settings every stream has: none."""

        def num_parameters(self, plan: Plan, dim: int) -> int:
            """Parameters of the bank."""
            return 0

        def flops(self, plan: Plan, dim: int) -> int:
            """Forward FLOPs of a token in the stream's matrix products, over all visits."""
            return 0

        def executed_flops(self, plan: Plan, dim: int) -> int:
            """The same for what dense kernels compute."""
            return 0

    def __init__(self, config: Any, dim: int):
        super().__init__()

    def bank(self, plan: Plan) -> nn.Module | None:
        """The parameters that differ by visit."""
        return None

    def open(self, x: Tensor) -> Tensor:
        """State from the embedding `[B, T, D]`."""
        return x

    def read(self, state: Tensor, site: int, maps: None) -> tuple[Tensor, None]:
        """What the branch at `site` (0 mixer, 1 ffn) sees, before its norm."""
        return state, None

    def write(self, state: Tensor, y: Tensor, site: int, link: None, gains: SiteGains, maps: None) -> Tensor:
        """Add a branch's output."""
        return scaled(gains.skip, state) + scaled(gains.write, y)

    def map(self, state: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply `fn` to the carried stream."""
        return fn(state)

    def close(self, state: Tensor, readout: None) -> Tensor:
        """The residual `[B, T, D]`."""
        return state
