"""One block: a mixer branch, then a feed-forward branch, each between its norms and gains."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from depthkit.model.gains import BRANCHES, SiteGains, scaled
from depthkit.model.norms.base import Norm
from depthkit.model.schedules import Bank

Aux = dict[str, Tensor]
NO_BANK = Bank()


class Norms(NamedTuple):
    """The three norm sites of a branch; absent ones hold the identity."""

    before: Norm
    after_branch: Norm
    after_add: Norm


class Site(nn.Module):
    """A branch with the norms around it; `role` is `mixer` or `ffn`."""

    def __init__(self, role: str, branch: nn.Module, norms: Norms):
        super().__init__()
        self.role = role
        self.before, self.after_branch, self.after_add = norms
        self.branch = branch


class Block(nn.Module):
    """`forward(state, gains, ctx, bank) -> (state, aux)`; owns only what all its visits share.

    Args:
        mixer, ffn: branches with `forward(h, ctx, bank) -> (y, aux)` and `prepare(ids, documents) -> ctx`.
        norms: the norm sites of mixer and ffn.
        stream: how the residual is carried; shared by all blocks.
    """

    def __init__(self, mixer: nn.Module, ffn: nn.Module, norms: tuple[Norms, ...], stream: nn.Module):
        super().__init__()
        self.mixer = Site(BRANCHES[0], mixer, norms[0])
        self.ffn = Site(BRANCHES[1], ffn, norms[1])
        # Few norms look at weights; the others must not cost a call a layer and forward.
        self.watchers = tuple(norm for triple in norms for norm in triple if type(norm).look is not Norm.look)
        self._stream = (stream,)  # a tuple keeps the shared stream from being registered in every block

    def prepare(self, ids: Tensor, documents: Tensor | None) -> tuple[Any, Any]:
        """Contexts of both branches for ids `[B, T]`; the same for every block of this kind."""
        return self.mixer.branch.prepare(ids, documents), self.ffn.branch.prepare(ids, documents)  # type: ignore[operator]

    def look(self, ids: Tensor) -> None:
        """Let the norms see the block before its visits, once a forward and outside what is compiled."""
        for norm in self.watchers:
            norm.look(self.mixer.branch, ids)

    def forward(
        self,
        state: Any,
        gains: tuple[SiteGains, SiteGains],
        ctx: tuple[Any, Any],
        bank: Bank = NO_BANK,
    ) -> tuple[Any, Aux]:
        """One visit: both branches read from and write to the stream."""
        stream = self._stream[0]
        stats: Any = None
        aux: Aux = {}
        for index, site in enumerate((self.mixer, self.ffn)):
            gain = gains[index]
            x, link = stream.read(state, index, bank.stream[index])  # type: ignore[operator]
            h, stats = site.before(x, stats, site.role, gain)
            y, extra = site.branch(scaled(gain.read, h), ctx[index], bank.branch[index])
            y, _ = site.after_branch(y, None, "after", gain)
            state = stream.write(state, y, index, link, gain, bank.stream[index])  # type: ignore[operator]
            state = stream.map(state, lambda carried, norm=site.after_add: norm(carried, None, "after")[0])  # type: ignore[operator]
            aux.update(extra)
        return state, aux
