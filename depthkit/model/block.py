"""One block: a mixer branch, then a feed-forward branch, each between its norms and gains."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from torch import Tensor, nn

from depthkit.model.contracts import Stream
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

    branch: Any
    """A mixer or a feed-forward; see `Block`."""

    def __init__(self, role: str, branch: nn.Module, norms: Norms):
        super().__init__()
        self.role = role
        self.before, self.after_branch, self.after_add = norms
        self.branch = branch


class Block(nn.Module):
    """`forward(state, gains, ctx, bank) -> (state, aux)`; owns only what all its visits share.

    Args:
        mixer, ffn: branches with `forward(h, ctx, bank) -> (y, aux)`; a mixer has `prepare(ids, documents,
            start) -> ctx`, a feed-forward `prepare(ids, counted) -> ctx`.
        norms: the norm sites of mixer and ffn.
        stream: how the residual is carried; shared by all blocks.
    """

    def __init__(self, mixer: nn.Module, ffn: nn.Module, norms: tuple[Norms, ...], stream: Stream):
        super().__init__()
        self.mixer = Site(BRANCHES[0], mixer, norms[0])
        self.ffn = Site(BRANCHES[1], ffn, norms[1])
        # Few norms look at weights; the others must not cost a call a layer and forward.
        self.watchers = tuple(norm for triple in norms for norm in triple if type(norm).look is not Norm.look)
        self._stream = (stream,)  # a tuple keeps the shared stream from being registered in every block

    def prepare(self, inputs: Any, start: int = 0) -> tuple[Any, Any]:
        """Contexts of both branches for `Inputs` at positions from `start`; one for all blocks of a kind."""
        mixer, ffn = self.mixer.branch, self.ffn.branch
        return (
            mixer.prepare(inputs.ids, inputs.documents, start=start),
            ffn.prepare(inputs.ids, inputs.counted),
        )

    def with_cache(self, ctx: tuple[Any, Any], cache: Any, key: Any) -> tuple[Any, Any]:
        """Contexts of one visit, whose mixer reads and extends the cache's slot of `key`."""
        return self.mixer.branch.with_cache(ctx[0], cache.slot(key)), ctx[1]

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
        stats: Any = None
        aux: Aux = {}
        for index in range(len(BRANCHES)):
            state, stats, extra = self._branch(index, state, stats, gains[index], ctx[index], bank)
            aux.update(extra)
        return state, aux

    def without(
        self, branches: Collection[str], state: Any, gains: Any, ctx: Any, bank: Bank = NO_BANK
    ) -> tuple[Any, Aux]:
        """One visit in which the named branches are left out: the state passes them unchanged."""
        stats: Any = None
        aux: Aux = {}
        for index, role in enumerate(BRANCHES):
            if role not in branches:
                state, stats, extra = self._branch(index, state, stats, gains[index], ctx[index], bank)
                aux.update(extra)
        return state, aux

    def _branch(
        self, index: int, state: Any, stats: Any, gain: SiteGains, ctx: Any, bank: Bank
    ) -> tuple[Any, Any, Aux]:
        site, stream = (self.mixer, self.ffn)[index], self._stream[0]
        x, link = stream.read(state, index, bank.stream[index])
        h, stats = site.before(x, stats, site.role, gain)
        y, aux = site.branch(scaled(gain.read, h), ctx, bank.branch[index])
        y, _ = site.after_branch(y, None, "after", gain)
        state = stream.write(state, y, index, link, gain, bank.stream[index])
        state = stream.map(state, lambda carried: site.after_add(carried, None, "after")[0])
        return state, stats, aux
