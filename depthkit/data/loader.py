"""Training batches from a token store, through torch's DataLoader.

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
from depthkit.data.packing import num_full_windows, windows_at
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
        num_windows = num_full_windows(self.store.count, loading.sequence_length)
        order = micro_batches(loading.seed, num_windows, batch_size, start)
        for batch in load(Windows(self.store, loading), loading.num_workers, batch_sampler=order):
            yield batch, {}

    def summary(self) -> dict[str, Any]:
        """See `Source`."""
        return self.store.summary("train")


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
