"""Any data set that the `datasets` library can load, as a whole or as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path

from pydantic import Field

from depthkit.data import holding_out, reading, store
from depthkit.data.interfaces import Split, Splits, Tokenizer
from depthkit.data.loader import HeldOutWindows, WindowSource
from depthkit.data.registries import CORPORA
from depthkit.data.sources.hub import DatasetName, HubRecords
from depthkit.data.streaming import StreamSource, TextStream
from depthkit.data.tokenise import tokenised

STREAM_VALIDATION = 1000


@CORPORA.register("hub")
class HubDataset:
    """A data set by name. A document is a row."""

    class Config(DatasetName):
        """Which data set, and what is held out."""

        validation_fraction: float = Field(0.05, gt=0, lt=1)
        """Share of documents held out without `validation_split`, chosen by a hash of their text."""
        validation_documents: int | None = Field(None, ge=1)
        """Validate on the first so many held-out documents; null means all, or 1000 of a stream."""
        text_field: str = "text"
        """Column of the text."""
        streaming: bool = False
        """Read while training, instead of downloading and tokenising everything first."""

    def __init__(self, config: Config):
        self._config = config
        self._records = HubRecords(config, config.streaming)

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 of the library's fingerprint of the data (a stream has none) and of all settings."""
        return store.key(prints=self._records.prints, **self._config.model_dump())

    def texts(self, split: Split) -> Iterator[str]:
        """The documents of a split, in the order of the data set."""
        held_out = split == "validation"
        texts = self._texts(split)
        if not self._config.validation_split:
            texts = (text for text in texts if (holding_out.place(text) <= self._threshold) == held_out)
        return islice(texts, self._limit) if held_out else texts

    @property
    def _limit(self) -> int | None:
        return self._config.validation_documents or (STREAM_VALIDATION if self._config.streaming else None)

    @cached_property
    def _threshold(self) -> float:
        if self._config.validation_split:
            return -1.0
        if self._config.streaming:
            return self._config.validation_fraction
        return holding_out.threshold(self._texts("train"), self._config.validation_fraction)

    def _texts(self, split: Split) -> Iterator[str]:
        return (reading.text(row, self._config.text_field) for row in self._records.rows(split))

    def open(self, tokenizer: Tokenizer, folder: Path) -> Splits:
        """See `Corpus`; of a stream, only the held-out documents are tokenised and kept."""
        if not self._config.streaming:
            stores = tokenised(self, tokenizer, folder)
            return Splits(WindowSource(stores["train"]), HeldOutWindows(stores["validation"]))
        stream = TextStream(self._records.train, "data.corpus hub", self._config.text_field, self._threshold)
        validation = tokenised(self, tokenizer, folder, ("validation",))["validation"]
        return Splits(StreamSource(stream, tokenizer, self.fingerprint), HeldOutWindows(validation))
