"""Training batches from a stream that is too large to hold, or to tokenise beforehand.

The order is the library's seeded shuffle of the shards, then a seeded permutation of each block of
documents. (The library's own shuffle buffer is not part of its saved state, so a resumed run would see
other documents.) A position is the document in which the next window starts: the library's state at the
start of its block, its place in the block, and an offset in tokens. Nothing that was read has to be saved.

Shapes: B sequences, T tokens.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from depthkit.data import holding_out, reading
from depthkit.data.batch import Batch, make_batch
from depthkit.data.interfaces import Loading, Tokenizer
from depthkit.data.loader import load
from depthkit.data.order import generator
from depthkit.data.packing import windows_at
from depthkit.data.tokenise import with_bos

BLOCK = 1000
"""Documents permuted together."""


@dataclass(frozen=True)
class Place:
    """Where in the stream a token stands."""

    epoch: int = 0
    block: int = 0
    stream: dict[str, Any] | None = None
    """The library's state at the start of the block; None at the start of an epoch."""
    index: int = 0
    """Place of the document in its permuted block."""
    offset: int = 0
    """Place of the token in its document."""


@dataclass(frozen=True)
class TextStream:
    """Documents of a `datasets.IterableDataset`."""

    dataset: Any
    source: str
    """The setting that named the data, for messages."""
    field: str
    """Column of the text."""
    held_out: float
    """Documents whose hash is at most this belong to validation."""

    def documents(self, seed: int, place: Place) -> Iterator[tuple[Place, str]]:
        """Training documents from `place` on, without end, each with its own place.

        Raises:
            ValueError: an epoch without a single document.
        """
        while True:
            count = 0
            for document in self._epoch(seed, place):
                count += 1
                yield document
            if not count and place.stream is None:
                raise ValueError(f"{self.source}: the stream has no training documents")
            place = Place(epoch=place.epoch + 1)

    def _epoch(self, seed: int, place: Place) -> Iterator[tuple[Place, str]]:
        dataset = self.dataset.shuffle(seed=_number(seed, place.epoch), buffer_size=1)
        if place.stream is not None:
            dataset.load_state_dict(place.stream)
        numbered = iter(enumerate(dataset))
        while rows := reading.read(self.source, numbered, BLOCK):
            block = [reading.text(row, self.field) for row in rows]
            kept = [text for text in block if text and holding_out.place(text) > self.held_out]
            order = generator(seed, place.epoch, 1 + place.block).permutation(len(kept))
            for index in range(place.index, len(kept)):
                yield replace(place, index=index, offset=0), kept[order[index]]
            place = Place(place.epoch, place.block + 1, dataset.state_dict())


def _number(seed: int, epoch: int) -> int:
    return int(generator(seed, epoch, 0).integers(2**31))


class StreamBatches(IterableDataset[tuple[Batch, dict[str, Any]]]):
    """Batches from a place on, each with the place that follows it; what a DataLoader's worker holds."""

    def __init__(
        self, stream: TextStream, tokenizer: Tokenizer, loading: Loading, batch_size: int, place: Place
    ):
        self.stream = stream
        self.tokenizer = tokenizer
        self.loading = loading
        self.batch_size = batch_size
        self.place = place

    def __iter__(self) -> Iterator[tuple[Batch, dict[str, Any]]]:
        size = self.batch_size * self.loading.sequence_length
        pending: deque[tuple[Place, NDArray[np.int64]]] = deque()
        supply = self._pieces()
        while True:
            while sum(len(ids) for _, ids in pending) < size + 1:
                pending.append(next(supply))
            batch = self._batch([ids for _, ids in pending])
            _drop(pending, size)
            yield batch, asdict(pending[0][0])

    def _pieces(self) -> Iterator[tuple[Place, NDArray[np.int64]]]:
        """Tokenised documents; the first may be the rest of one."""
        documents = self.stream.documents(self.loading.seed, replace(self.place, offset=0))
        offset = self.place.offset
        for place, text in documents:
            (ids,) = with_bos([text], self.tokenizer)
            yield replace(place, offset=offset), ids[offset:]
            offset = 0

    def _batch(self, pieces: list[NDArray[np.int64]]) -> Batch:
        starts = np.cumsum([0, *(len(ids) for ids in pieces)])[:-1]
        windows, documents = windows_at(
            np.concatenate(pieces), starts, np.arange(self.batch_size), self.loading.sequence_length
        )
        return make_batch(windows, documents, self.loading.byte_lengths, self.loading.document_mask)


def _drop(pending: deque[tuple[Place, NDArray[np.int64]]], size: int) -> None:
    """Remove the first `size` tokens."""
    while size >= len(pending[0][1]):
        size -= len(pending.popleft()[1])
    place, ids = pending[0]
    pending[0] = replace(place, offset=place.offset + size), ids[size:]


class StreamSource:
    """An endless supply of training batches from a stream."""

    def __init__(self, stream: TextStream, tokenizer: Tokenizer, identity: str):
        self.stream = stream
        self.tokenizer = tokenizer
        self.identity = identity

    def check(self, loading: Loading) -> None:
        """Raise ValueError when the stream cannot be read or is empty."""
        next(self.stream.documents(loading.seed, Place()))

    def position_at(self, number: int) -> dict[str, Any] | None:
        """The start of the stream for 0, else None."""
        return {} if number == 0 else None

    def batches(
        self, batch_size: int, start: int, position: dict[str, Any], loading: Loading
    ) -> Iterator[tuple[Batch, dict[str, Any]]]:
        """See `Source`; a stream has one reader, whatever the number of workers."""
        if loading.num_workers > 1:
            warnings.warn(
                f"data.num_workers: a stream is read by 1 process, not {loading.num_workers}", stacklevel=2
            )
        reader = StreamBatches(self.stream, self.tokenizer, loading, batch_size, Place(**position))
        return iter(load(reader, min(loading.num_workers, 1), batch_size=None))

    def summary(self, loading: Loading) -> dict[str, Any]:
        """Nothing is counted: the end of a stream is not known."""
        return {"train_tokens": None, "train_documents": None, "train_sha256": None}
