"""Batches of conversations: training ones in a seeded order without end, and the held-out ones once.

Shapes: B windows, T tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from depthkit.data.batch import NOT_SCORED, Batch, make_batch
from depthkit.data.conversations.layout import Layout, lay_out
from depthkit.data.interfaces import Loading, Split
from depthkit.data.loader import shuffled
from depthkit.data.store import TokenStore


@dataclass(frozen=True)
class PackedWindows(Dataset[Batch]):
    """Batches of windows by their numbers; what a DataLoader's workers hold."""

    store: TokenStore
    layout: Layout
    loading: Loading

    def __getitems__(self, numbers: list[int]) -> Batch:
        """The windows with these numbers as one batch."""
        shape = (len(numbers), self.loading.sequence_length + 1)
        windows, documents = np.full(shape, NOT_SCORED), np.full(shape, -1)
        scored = np.zeros(shape, np.bool_)
        for row, number in enumerate(numbers):
            at = 0
            for place, member in enumerate(self.layout.window(number)):
                start, length = self.store.starts[member], self.layout.lengths[member]
                there, here = slice(start, start + length), slice(at, at + length)
                windows[row, here], scored[row, here] = self.store.tokens[there], self.store.scored[there]
                documents[row, here] = place
                at += length
        return make_batch(
            windows, documents[:, :-1], self.loading.byte_lengths, self.loading.document_mask, scored
        )


class Conversations:
    """What both splits share: the windows of a store, laid out once for a length."""

    split: Split

    def __init__(self, store: TokenStore):
        self.store = store
        self._layout: tuple[int, Layout] | None = None

    def windows(self, loading: Loading) -> PackedWindows:
        """The windows at the length that `loading` names."""
        if self._layout is None or self._layout[0] != loading.sequence_length:
            self._layout = loading.sequence_length, lay_out(self.store, loading.sequence_length)
        return PackedWindows(self.store, self._layout[1], loading)

    def check(self, loading: Loading) -> None:
        """Warn of conversations that are cut or left out; raise ValueError when none is left."""
        if not self.store.count:
            raise ValueError(f"data.corpus: there are no {self.split} conversations")
        layout, length = self.windows(loading).layout, loading.sequence_length
        lost = (
            f"{layout.truncated:,} of {len(self.store.starts):,} {self.split} conversations are longer than "
            f"a window (data.sequence_length {length}) and cut at their end; {layout.dropped:,} more are "
            "left out, as the cut takes every response"
        )
        if not layout.num_windows:
            raise ValueError(f"data.corpus: nothing can be scored: {lost}")
        if layout.truncated or layout.dropped:
            warnings.warn(f"data.corpus: {lost}", stacklevel=2)

    def summary(self, loading: Loading) -> dict[str, Any]:
        """Of the whole split; then what of it is scored, cut or left out at this length of windows."""
        layout = self.windows(loading).layout
        return self.store.summary(self.split) | {
            f"{self.split}_windows": layout.num_windows,
            f"{self.split}_scored": int(layout.scored.sum()),
            f"{self.split}_truncated": layout.truncated,
            f"{self.split}_dropped": layout.dropped,
        }


class ConversationSource(Conversations):
    """Training windows in a seeded order, one permutation per epoch; see `Source`."""

    split: Split = "train"

    @property
    def identity(self) -> str:
        """Sha256 of the token ids and of which are scored."""
        return self.store.sha256

    def position_at(self, number: int) -> dict[str, Any] | None:
        """Nothing: the number itself is the whole position."""
        return {}

    def batches(
        self, batch_size: int, start: int, position: dict[str, Any], loading: Loading
    ) -> Iterator[tuple[Batch, dict[str, Any]]]:
        """See `Source`."""
        windows = self.windows(loading)
        return shuffled(windows, windows.layout.num_windows, batch_size, start, loading)


class HeldOutConversations(Conversations):
    """Held-out windows; every scored token of every conversation once; see `HeldOut`."""

    split: Split = "validation"

    def batches(self, batch_size: int, max_tokens: int | None, loading: Loading) -> Iterator[Batch]:
        """See `HeldOut`; a limit spreads its windows evenly, from long conversations to short ones."""
        windows = self.windows(loading)
        numbers = spread(windows.layout.scored, max_tokens)
        return (windows.__getitems__(numbers[i : i + batch_size]) for i in range(0, len(numbers), batch_size))

    def unigram_entropy(self, loading: Loading) -> float:
        """See `HeldOut`."""
        counts = np.zeros(len(loading.byte_lengths), np.int64)
        for batch in self.batches(64, None, loading):
            targets = batch.targets[batch.targets != NOT_SCORED]
            counts += np.bincount(targets.numpy(), minlength=len(counts))
        shares = counts[counts > 0] / counts.sum()
        return float(-(shares * np.log(shares)).sum())


def spread(scored: NDArray[np.int64], max_tokens: int | None) -> list[int]:
    """Evenly spaced numbers of windows that score at most `max_tokens` in all, but at least one window."""
    total = len(scored)
    wanted = total if max_tokens is None else min(total, max(1, max_tokens * total // int(scored.sum())))
    while True:
        numbers = [number * total // wanted for number in range(wanted)]
        if max_tokens is None or wanted == 1 or scored[numbers].sum() <= max_tokens:
            return numbers
        wanted -= 1
