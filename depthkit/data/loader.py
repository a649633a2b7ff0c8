"""Batches from a token store; those for training through torch's DataLoader.

The main process decides which windows make up micro-batch k; workers only fetch them. So batches are the
same whatever the number of workers.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from depthkit.data.batch import Batch, make_batch
from depthkit.data.interfaces import Loading
from depthkit.data.order import micro_batches
from depthkit.data.packing import num_full_windows, num_windows, windows_at
from depthkit.data.store import TokenStore


class Windows(Dataset[Batch]):
    """Batches of windows by their numbers; what a DataLoader's workers hold."""

    def __init__(self, store: TokenStore, loading: Loading):
        self.store = store
        self.loading = loading

    def __getitems__(self, numbers: list[int]) -> Batch:
        """The windows with these numbers as one batch."""
        windows, documents = windows_at(
            self.store.tokens, self.store.starts, np.asarray(numbers), self.loading.sequence_length
        )
        return make_batch(windows, documents, self.loading.byte_lengths, self.loading.document_mask)


class WindowSource:
    """Training windows of a token store in a seeded order, one permutation per epoch."""

    def __init__(self, store: TokenStore):
        self.store = store

    @property
    def identity(self) -> str:
        """Sha256 of the token ids."""
        return self.store.sha256

    def check(self, loading: Loading) -> None:
        """Raise ValueError when there is less than one window."""
        count, needed = self.store.count, loading.sequence_length + 1
        if count < needed:
            raise ValueError(
                f"data.corpus: {count} training tokens are fewer than one window "
                f"(data.sequence_length + 1 = {needed})"
            )

    def position_at(self, number: int) -> dict[str, Any] | None:
        """Nothing: the number itself is the whole position."""
        return {}

    def batches(
        self, batch_size: int, start: int, position: dict[str, Any], loading: Loading
    ) -> Iterator[tuple[Batch, dict[str, Any]]]:
        """See `Source`."""
        count = num_full_windows(self.store.count, loading.sequence_length)
        return shuffled(Windows(self.store, loading), count, batch_size, start, loading)

    def summary(self, loading: Loading) -> dict[str, Any]:
        """See `Source`."""
        return self.store.summary("train")


class HeldOutWindows:
    """Held-out windows of a token store in the order of the text; each token but the first is scored once."""

    def __init__(self, store: TokenStore):
        self.store = store

    def check(self, loading: Loading) -> None:
        """Raise ValueError when there are fewer than two tokens."""
        if self.store.count < 2:
            raise ValueError("data.corpus: fewer than 2 held-out tokens, so nothing can be scored")

    def batches(self, batch_size: int, max_tokens: int | None, loading: Loading) -> Iterator[Batch]:
        """See `HeldOut`; a limit spreads its windows evenly over the text."""
        windows = Windows(self.store, loading)
        numbers = self._numbers(max_tokens, loading.sequence_length)
        return (windows.__getitems__(numbers[i : i + batch_size]) for i in range(0, len(numbers), batch_size))

    def _numbers(self, max_tokens: int | None, length: int) -> list[int]:
        total = num_windows(self.store.count, length)
        if max_tokens is None or max_tokens >= self.store.count - 1:
            return list(range(total))
        wanted = max(1, max_tokens // length)
        return [i * total // wanted for i in range(wanted)]

    def unigram_entropy(self, loading: Loading) -> float:
        """See `HeldOut`."""
        counts = np.bincount(self.store.tokens[1:])
        shares = counts[counts > 0] / counts.sum()
        return float(-(shares * np.log(shares)).sum())

    def summary(self, loading: Loading) -> dict[str, Any]:
        """See `HeldOut`."""
        return self.store.summary("validation")


def shuffled(
    windows: Any, count: int, batch_size: int, start: int, loading: Loading
) -> Iterator[tuple[Batch, dict[str, Any]]]:
    """Micro-batches of `count` windows in a seeded order, one permutation per epoch; see `Source.batches`."""
    order = micro_batches(loading.seed, count, batch_size, start)
    for batch in load(windows, loading.num_workers, batch_sampler=order):
        yield batch, {}


def load(dataset: Any, num_workers: int, **options: Any) -> DataLoader[Any]:
    """A DataLoader that passes on what the dataset gives, and leaves torch's global generator alone."""
    return DataLoader(
        dataset,
        num_workers=num_workers,
        collate_fn=as_is,
        generator=torch.Generator(),
        multiprocessing_context=_processes() if num_workers else None,
        **options,
    )


def as_is(batch: Any) -> Any:
    """The dataset's own batch, uncollated."""
    return batch


def _processes() -> Any:
    # Never a bare fork, which may deadlock once torch or a tokenizer runs threads. The fork server
    # imports torch once for all workers.
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context
