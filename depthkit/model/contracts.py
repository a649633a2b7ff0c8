"""What a block asks of the parts it is made of.

Shapes: B batch, T time, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor, nn

from depthkit.model.gains import SiteGains
from depthkit.model.plan import Plan


class Stream(Protocol):
    """How the residual is carried; a state is a pytree of tensors, batch first, of one shape throughout."""

    def bank(self, plan: Plan) -> nn.Module | None:
        """What differs by visit, if anything."""

    def open(self, x: Tensor) -> Any:
        """State from the embedding `[B, T, D]`."""

    def read(self, state: Any, site: int, maps: Any) -> tuple[Tensor, Any]:
        """What the branch at `site` (0 mixer, 1 ffn) sees, before its norm, and what `write` needs of it."""

    def write(self, state: Any, y: Tensor, site: int, link: Any, gains: SiteGains, maps: Any) -> Any:
        """The state with a branch's output."""

    def map(self, state: Any, fn: Callable[[Tensor], Tensor]) -> Any:
        """The state with `fn` applied to the carried stream."""

    def close(self, state: Any, readout: Any) -> Tensor:
        """The residual `[B, T, D]`."""
