"""Batches of pointer-chasing problems: training ones without end, and a fixed held-out set."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.utils.data import Dataset

from depthkit.data import store
from depthkit.data.batch import Batch
from depthkit.data.interfaces import Loading
from depthkit.data.loader import load
from depthkit.data.order import generator
from depthkit.data.tasks import pointers
from depthkit.data.tasks.pointers import Problems

TEST_STREAM = (0, 0, 1)
"""Seed and path of the random stream that draws the held-out problems, whatever the run's seed."""


@dataclass(frozen=True)
class Generated(Dataset[Batch]):
    """Micro-batches by their numbers; what a DataLoader's workers hold."""

    size: int
    hops: Sequence[int]
    batch_size: int
    loading: Loading

    def __getitems__(self, numbers: list[int]) -> Batch:
        """The micro-batch with the one given number."""
        (number,) = numbers
        rng = generator(self.loading.seed, number)
        hops = int(rng.choice(self.hops))
        return _batch(pointers.draw(rng, self.batch_size, self.size, held_out=False), hops, self.loading)


@dataclass(frozen=True)
class ProblemSource:
    """Training problems; micro-batch k follows from the settings, the seed, the batch size and k alone."""

    size: int
    hops: Sequence[int]
    """Drawn from with equal chance, once for every micro-batch."""

    @property
    def identity(self) -> str:
        """Sha256 of what training problems depend on."""
        return store.key(task="hops", size=self.size, hops=self.hops, held_out=pointers.HELD_OUT)

    def check(self, loading: Loading) -> None:
        """Raise ValueError when windows have another length than a problem."""
        if loading.sequence_length != 2 * self.size:
            raise ValueError(
                f"data.sequence_length: a problem of corpus hops with size {self.size} has {2 * self.size} "
                f"tokens (got {loading.sequence_length})"
            )

    def position_at(self, number: int) -> dict[str, Any] | None:
        """Nothing: the number itself is the whole position."""
        return {}

    def batches(
        self, batch_size: int, start: int, position: dict[str, Any], loading: Loading
    ) -> Iterator[tuple[Batch, dict[str, Any]]]:
        """See `Source`."""
        dataset = Generated(self.size, self.hops, batch_size, loading)
        numbers = ([number] for number in itertools.count(start))
        for batch in load(dataset, loading.num_workers, batch_sampler=numbers):
            yield batch, {}

    def summary(self, loading: Loading) -> dict[str, Any]:
        """Nothing is counted: problems are generated without end."""
        return {"train_tokens": None, "train_documents": None, "train_sha256": None}


@dataclass(frozen=True)
class HeldOutProblems:
    """The same problems on held-out cycles asked for each number of hops; a batch has one number."""

    size: int
    hops: Sequence[int]
    count: int

    @cached_property
    def _problems(self) -> Problems:
        return pointers.draw(generator(*TEST_STREAM), self.count, self.size, held_out=True)

    def check(self, loading: Loading) -> None:
        """Nothing can be missing."""

    def batches(self, batch_size: int, max_tokens: int | None, loading: Loading) -> Iterator[Batch]:
        """See `HeldOut`; a limit takes the first problems, equally many (at least one) for each number."""
        count = self.count
        if max_tokens is not None:
            count = min(count, max(1, max_tokens // (self.size * len(self.hops))))
        for hops, first in itertools.product(self.hops, range(0, count, batch_size)):
            yield _batch(self._problems.part(first, min(first + batch_size, count)), hops, loading)

    def unigram_entropy(self, loading: Loading) -> float:
        """ln N nats: each problem has every place as an answer once."""
        return math.log(self.size)

    def summary(self, loading: Loading) -> dict[str, Any]:
        """Tokens and problems over all numbers of hops, and the hash of the ids, the same for each."""
        ids = self._problems.ids()
        return {
            "validation_tokens": ids.size * len(self.hops),
            "validation_documents": len(ids) * len(self.hops),
            "validation_sha256": hashlib.sha256(store.hash_bytes(ids)).hexdigest(),
        }


def _batch(problems: Problems, hops: int, loading: Loading) -> Batch:
    ids = torch.from_numpy(problems.ids())
    documents = torch.zeros_like(ids) if loading.document_mask else None
    return Batch(ids, torch.from_numpy(problems.targets(hops)), documents, num_bytes=0, loops=hops)
