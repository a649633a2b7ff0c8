"""Gains: what a regulator multiplies at each site.

    x  ->  skip * x  +  write * branch(read * norm(x))

Shapes: V visits, 2 branches (mixer, ffn), D width. A gain is None (absent), or fp32 `[V, 2, 1]` (one scalar
a site) or `[V, 2, D]` (a vector a site).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

BRANCHES = ("mixer", "ffn")


class SiteGains(NamedTuple):
    """The gains of one branch of one visit, each None, `[1]` or `[D]`, fp32."""

    read: Tensor | None = None
    write: Tensor | None = None
    skip: Tensor | None = None


@dataclass(frozen=True)
class Gains:
    """Gains over a whole plan; `embed`, `final`, `logits` are the pseudo-sites, each None, `[1]` or `[D]`."""

    read: Tensor | None = None
    write: Tensor | None = None
    skip: Tensor | None = None
    embed: Tensor | None = None
    final: Tensor | None = None
    logits: Tensor | None = None

    def per_visit(self, depth: int) -> list[tuple[SiteGains, SiteGains]]:
        """One pair (mixer, ffn) a visit."""
        tables = [_rows(gain, depth) for gain in (self.read, self.write, self.skip)]
        return [
            (SiteGains(*(t[v][0] for t in tables)), SiteGains(*(t[v][1] for t in tables)))
            for v in range(depth)
        ]

    def within(self, mask: Tensor) -> Gains:
        """Gains of all V visits: these, in order, where `mask` ([V], bool) holds, neutral elsewhere."""
        return replace(
            self,
            **{
                name: _spread(gain, mask)
                for name in ("read", "write", "skip")
                if (gain := getattr(self, name)) is not None
            },
        )

    def inside_blocks(self) -> Gains:
        """The same gains without those of the pseudo-sites."""
        return replace(self, embed=None, final=None, logits=None)


def _spread(gain: Tensor, mask: Tensor) -> Tensor:
    everywhere = gain.new_ones(len(mask), *gain.shape[1:])
    return everywhere.index_put((mask.to(gain.device),), gain)


def _rows(gain: Tensor | None, depth: int) -> list[list[Tensor | None]]:
    if gain is None:
        return [[None, None]] * depth
    return [list(row.unbind(0)) for row in gain.unbind(0)]


def compose(parts: Iterable[Gains]) -> Gains:
    """Several regulators act together by multiplying their gains."""
    product = Gains()
    for part in parts:
        names = [field.name for field in fields(Gains)]
        product = Gains(**{name: _times(getattr(product, name), getattr(part, name)) for name in names})
    return product


def _times(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a * b


def per_site(values: Iterable[float], device: torch.device | None = None) -> Tensor:
    """One value a visit -> `[V, 2, 1]`, the same for both branches, fp32."""
    column = torch.tensor(list(values), dtype=torch.float32, device=device)
    return column[:, None, None].expand(-1, len(BRANCHES), 1)


def per_branch(values: Iterable[tuple[float, float]], device: torch.device | None = None) -> Tensor:
    """A pair (mixer, ffn) a visit -> `[V, 2, 1]`, fp32."""
    return torch.tensor(list(values), dtype=torch.float32, device=device).view(-1, len(BRANCHES), 1)


def scaled(gain: Tensor | None, x: Tensor) -> Tensor:
    """`gain * x`, and `x` itself where there is no gain."""
    return x if gain is None else gain * x
