"""What the corpora `chat` and `instruct` share."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import Field

from depthkit.config import Component
from depthkit.data import holding_out, store
from depthkit.data.conversations.encoding import Encoder, end_of
from depthkit.data.conversations.messages import Message, checked
from depthkit.data.conversations.supply import ConversationSource, HeldOutConversations
from depthkit.data.interfaces import SPLITS, Split, Splits, Tokenizer
from depthkit.data.reading import Row
from depthkit.data.registries import SOURCES, TEMPLATES
from depthkit.data.tokenise import stored
from depthkit.registry import Spec


class Records(Protocol):
    """A source of records; built as `component(config)`. Its config may have a property `remote`."""

    has_validation: bool
    """Whether the split `validation` has records of its own."""

    @property
    def fingerprint(self) -> str:
        """Sha256 of what is read."""

    def rows(self, split: Split) -> Iterator[Row]:
        """The records of a split, in a fixed order."""


class ConversationSettings(Spec):
    """Where records come from, how they are written out, and what is held out."""

    source: Annotated[Any, Component(SOURCES)]
    """Where the records come from: `{kind: files, paths: [...]}`, `{kind: hub, name: ...}`, `kjv_books`."""
    template: Annotated[Any, Component(TEMPLATES)] = Field("plain", validate_default=True)
    """How a conversation is written out: `plain`, `tokenizer` (its own), or `{kind: jinja, path: ...}`."""
    end: str | None = None
    """Mark that closes a response where the template writes none; null takes the tokenizer's eos, or bos."""
    validation_fraction: float = Field(0.05, gt=0, lt=1)
    """Share of conversations held out where the source has no validation data of its own."""
    validation_seed: int = 0
    """Which are held out: those with the lowest hashes of this number and their text."""

    @property
    def remote(self) -> str | None:
        """What would have to be fetched to open it."""
        return getattr(self.source, "remote", None)

    def needs(self) -> dict[str, Any]:
        """Windows of a length that holds whole conversations, which an evaluation may not shorten."""
        return {"sequence_length": None}


class ConversationCorpus(ABC):
    """Records as conversations in two splits; what a record means is left to the kind of corpus."""

    last_only = False
    """Whether only the last response of a conversation is scored."""

    def __init__(self, config: Any):
        self._config: Any = config
        self._records: Records = config.source.component(config.source)

    @abstractmethod
    def messages(self, row: Row) -> list[Any]:
        """The turns of a record.

        Raises:
            ValueError: the record has not what it should have.
        """

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 of the records and of how they are read and split."""
        return store.key(records=self._records.fingerprint, **self._config.model_dump(exclude={"source"}))

    def texts(self, split: Split) -> Iterator[str]:
        """The contents of all messages of a split."""
        for _, messages in self._conversations(split):
            yield from (message["content"] for message in messages)

    def open(self, tokenizer: Tokenizer, folder: Path) -> Splits:
        """See `Corpus`."""
        template = self._config.template.component(self._config.template).jinja(tokenizer)
        end = end_of(tokenizer, self._config.end)
        encoder = Encoder(tokenizer, template, end, self.last_only)
        entry = store.key(
            format=store.FORMAT,
            corpus=self.fingerprint,
            tokenizer=tokenizer.fingerprint,
            template=template,
            end=end,
        )
        stores = stored(
            folder,
            entry,
            lambda: {split: encoder.encode(self._conversations(split)) for split in SPLITS},
            tokenizer.vocab_size,
        )
        return Splits(ConversationSource(stores["train"]), HeldOutConversations(stores["validation"]))

    def _conversations(self, split: Split) -> Iterator[tuple[str, list[Message]]]:
        if self._records.has_validation:
            return self._read(split)
        held_out = split == "validation"
        return (one for one in self._read("train") if (self._place(one[1]) <= self._threshold) == held_out)

    def _read(self, split: Split) -> Iterator[tuple[str, list[Message]]]:
        return ((row.where, checked(self.messages(row), row.where)) for row in self._records.rows(split))

    @cached_property
    def _threshold(self) -> float:
        texts = (self._text(messages) for _, messages in self._read("train"))
        return holding_out.threshold(texts, self._config.validation_fraction)

    def _place(self, messages: list[Message]) -> float:
        return holding_out.place(self._text(messages))

    def _text(self, messages: list[Message]) -> str:
        return f"{self._config.validation_seed} {json.dumps(messages, sort_keys=True)}"
