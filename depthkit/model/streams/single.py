"""The ordinary residual stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from depthkit.model.gains import SiteGains, scaled
from depthkit.model.registries import STREAMS


@STREAMS.register("single")
class SingleStream(nn.Module):
    """One residual stream: the state is the tensor `[B, T, D]` itself.

    The contract of every stream: `open` makes a state from the embedding, `read` gives a branch its input
    and whatever `write` needs to put the branch's output back, `map` applies a function to the carried
    tensors, `close` gives the tensor the head reads.
    """

    equation = "x <- skip * x + write * y"

    def __init__(self, config: Any, dim: int):
        super().__init__()

    def open(self, x: Tensor) -> Tensor:
        """State from the embedding `[B, T, D]`."""
        return x

    def read(self, state: Tensor, site: int) -> tuple[Tensor, None]:
        """What the branch at `site` (0 mixer, 1 ffn) sees, before its norm."""
        return state, None

    def write(self, state: Tensor, y: Tensor, site: int, link: None, gains: SiteGains) -> Tensor:
        """Add a branch's output."""
        return scaled(gains.skip, state) + scaled(gains.write, y)

    def map(self, state: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply `fn` to the carried stream."""
        return fn(state)

    def close(self, state: Tensor) -> Tensor:
        """The residual `[B, T, D]`."""
        return state
