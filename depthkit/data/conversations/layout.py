"""Which conversations share a window.

A conversation is never spread over two windows. One that is longer than a window is cut at its end, and
left out when that takes all that is scored. The rest is packed by best fit, the longest first: each goes
into the fullest window that still has room for it.

Shapes: M conversations, K kept, W windows, T tokens.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from depthkit.data.store import TokenStore

Array = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """The windows of one split at one length."""

    members: Array
    """[K] numbers of the kept conversations, window after window."""
    bounds: Array
    """[W + 1] where each window's members begin among `members`."""
    lengths: Array
    """[M] tokens of each conversation that are kept."""
    scored: Array
    """[W] tokens scored in each window."""
    truncated: int
    """Conversations that are cut and still scored."""
    dropped: int
    """Conversations left out, as the cut takes all that is scored."""

    @property
    def num_windows(self) -> int:
        """W."""
        return len(self.scored)

    def window(self, number: int) -> Array:
        """The conversations in a window."""
        return self.members[self.bounds[number] : self.bounds[number + 1]]


def lay_out(store: TokenStore, sequence_length: int) -> Layout:
    """Cut and pack the conversations of a store into windows of T inputs: T + 1 tokens."""
    starts, space = store.starts, sequence_length + 1
    whole = np.diff(starts, append=store.count)
    lengths = np.minimum(whole, space)
    pairs = zip(starts.tolist(), lengths.tolist(), strict=True)
    counts = np.array([np.count_nonzero(store.scored[a : a + n]) for a, n in pairs], np.int64)
    kept = np.flatnonzero(counts)
    windows = best_fit(lengths[kept], space)
    order = np.argsort(windows, kind="stable")
    total = int(windows.max(initial=-1)) + 1
    return Layout(
        members=kept[order],
        bounds=np.searchsorted(windows[order], np.arange(total + 1)),
        lengths=lengths,
        scored=np.bincount(windows, counts[kept], total).astype(np.int64),
        truncated=int((whole[kept] > space).sum()),
        dropped=len(starts) - len(kept),
    )


def best_fit(lengths: Array, space: int) -> Array:
    """[K] the window of each item, for items of `lengths` [K], all at most `space`."""
    found, count = np.empty(len(lengths), np.int64), 0
    by_space: dict[int, list[int]] = {}
    spaces: list[int] = []  # the keys of by_space, ascending
    for item in np.argsort(-lengths, kind="stable").tolist():
        length, left = int(lengths[item]), space
        at = bisect_left(spaces, length)
        if at == len(spaces):
            window, count = count, count + 1
        else:
            left = spaces[at]
            window = by_space[left].pop()
            if not by_space[left]:
                del by_space[left], spaces[at]
        found[item], left = window, left - length
        if left not in by_space:
            insort(spaces, left)
            by_space[left] = []
        by_space[left].append(window)
    return found
