"""The contract of a norm."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from depthkit.model.gains import SiteGains
from depthkit.registry import Spec


class Norm(nn.Module):
    """`forward(x [..., D], stats, role, gains) -> (h [..., D], stats)`; statistics are fp32.

    `stats` lives for one visit and lets a norm share statistics between its two branches; `role` is
    `mixer`, `ffn`, `after` (a branch's output or the sum), `embed` or `final`, the one the norm was built
    with; `gains` are those of the site.
    Without `gain` a norm has no learned per-channel gain, because a regulator owns the gains.
    Class attribute `placements` names the norm sites a kind supports: before_branch, after_branch, after_add.
    """

    equation: ClassVar[str] = ""
    source: ClassVar[str] = ""
    placements: ClassVar[frozenset[str]] = frozenset({"before_branch", "after_branch", "after_add"})
    uses_gains: bool = False
    """Whether what the norm gives depends on the gains of the visit, which then cannot be folded away."""

    class Config(Spec):
        """Settings every norm has: none."""

        def num_parameters(self, dim: int, gain: bool = True) -> int:
            """Number of parameters of one norm of width `dim`, with or without its per-channel gain."""
            return 0

        def outside(self) -> Any:
            """The norm of the head or the embedding where the config does not name one."""
            return self

    def __init__(self, config: Any, dim: int, gain: bool = True, role: str = "final"):
        super().__init__()
        self.config = config
        self.dim = dim

    def look(self, mixer: nn.Module, ids: Tensor) -> None:
        """See the block's mixer and the ids `[B, T]` once a forward, before any visit and outside what is
        compiled; for norms that keep a measure of the weights in a buffer."""

    def forward(
        self, x: Tensor, stats: Any = None, role: str = "final", gains: SiteGains | None = None
    ) -> tuple[Tensor, Any]:
        """See the class."""
        raise AssertionError("a norm implements forward")


def precise(x: Tensor) -> Tensor:
    """`x` in fp32, or as it is in fp64."""
    return x if x.dtype == torch.float64 else x.float()
