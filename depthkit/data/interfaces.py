"""What a tokenizer, a corpus and a source of training batches have to offer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from depthkit.data.batch import Batch

Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")


class Mark(NamedTuple):
    """An id that stands for no text of its own, such as the end of a turn."""

    id: int
    takes_left: bool = False
    """Whether white space before its name belongs to it."""
    takes_right: bool = False
    """Whether white space after its name belongs to it."""


class Tokenizer(Protocol):
    """Text to token ids and back.

    A component is built as `component(config, corpus, folder)`: `corpus` for tokenizers that learn from
    text, `folder` (the cache) for those that keep what they learned.
    """

    vocab_size: int
    """Number of ids; every id is below it."""
    fingerprint: str
    """Sha256 of everything that defines the mapping."""
    bos: int | None
    """The id put in front of every document; None when the vocabulary has no such mark."""
    eos: str | None
    """Name of the mark that ends a text, among `marks`; None when the tokenizer names none."""

    @property
    def marks(self) -> Mapping[str, Mark]:
        """The marks that a chat template may write, by name."""

    @property
    def chat_template(self) -> str | None:
        """The Jinja template for conversations that comes with the tokenizer."""

    @property
    def byte_lengths(self) -> NDArray[np.int64]:
        """[vocab_size] bytes of text each id stands for; 0 for marks such as bos."""

    def encode(self, text: str) -> NDArray[np.int64]:
        """The ids of the text alone, without bos."""

    def encode_many(self, texts: list[str]) -> list[NDArray[np.int64]]:
        """`encode` of each text, in parallel where the library can."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; marks are left out."""


class Corpus(Protocol):
    """A body of text or of token ids in two splits; built as `component(config)`.

    Its config may have `needs() -> dict`: what else has to stand in `data:`, such as the tokenizer; it is
    filled in where the user is silent, and anything else is refused. None leaves the choice to the user, and
    what a run chose to an evaluation of it. It may have `loops() -> list[int]`: all values of `Batch.loops`
    to come.
    """

    @property
    def fingerprint(self) -> str:
        """Sha256 of what is read and how it is split."""

    def texts(self, split: Split) -> Iterator[str]:
        """The documents of a split, in a fixed order."""

    def open(self, tokenizer: Tokenizer, folder: Path) -> Splits:
        """Token ids of both splits, kept under the cache folder where that saves work."""


@dataclass(frozen=True)
class Loading:
    """How windows become batches; the same for every corpus."""

    sequence_length: int
    document_mask: bool
    num_workers: int
    seed: int
    byte_lengths: NDArray[np.int64]


@dataclass(frozen=True)
class Splits:
    """What a corpus opens to."""

    train: Source
    validation: HeldOut


class Source(Protocol):
    """An endless, resumable supply of training batches."""

    @property
    def identity(self) -> str:
        """Sha256 that tells whether a saved position belongs to this source."""

    def check(self, loading: Loading) -> None:
        """Raise ValueError when there is less than one window."""

    def position_at(self, number: int) -> dict[str, Any] | None:
        """The position of a micro-batch as far as its number tells; None when more is needed."""

    def batches(
        self, batch_size: int, start: int, position: dict[str, Any], loading: Loading
    ) -> Iterator[tuple[Batch, dict[str, Any]]]:
        """Micro-batches number `start`, `start + 1`, ..., each with the position that follows it (JSON)."""

    def summary(self, loading: Loading) -> dict[str, Any]:
        """Counts of train tokens and documents, as far as they are known."""


class HeldOut(Protocol):
    """A fixed set of held-out batches."""

    def check(self, loading: Loading) -> None:
        """Raise ValueError when nothing can be scored."""

    def batches(self, batch_size: int, max_tokens: int | None, loading: Loading) -> Iterator[Batch]:
        """All of it, or about `max_tokens` scored tokens that stand for all of it."""

    def unigram_entropy(self, loading: Loading) -> float:
        """Nats per token of the scored targets under their own distribution."""

    def summary(self, loading: Loading) -> dict[str, Any]:
        """Counts of validation tokens and documents, and the sha256 of the ids."""
