"""Any data set that the `datasets` library can load, as a whole or as a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import Field

from depthkit.data import holding_out, reading, store
from depthkit.data.interfaces import Split, Splits, Tokenizer
from depthkit.data.loader import HeldOutWindows, WindowSource
from depthkit.data.registries import CORPORA
from depthkit.data.streaming import StreamSource, TextStream
from depthkit.data.tokenise import tokenised
from depthkit.registry import Spec

STREAM_VALIDATION = 1000


@CORPORA.register("hub")
class HubDataset:
    """A data set by name. A document is a row."""

    class Config(Spec):
        """Which data set, and what is held out."""

        name: str
        """Name on the Hugging Face hub, such as `HuggingFaceFW/fineweb-edu`, or a format such as `json`."""
        config: str | None = None
        """Configuration of the data set, such as `sample-10BT`."""
        revision: str | None = None
        """Branch, tag or commit of the data set."""
        data_files: list[str] | None = None
        """Files to read, where the name is a format or the data set holds several."""
        split: str = "train"
        """Split to train on."""
        validation_split: str | None = None
        """Split to validate on; null holds out a share of the training split."""
        validation_fraction: float = Field(0.05, gt=0, lt=1)
        """Share of documents held out without `validation_split`, chosen by a hash of their text."""
        validation_documents: int | None = Field(None, ge=1)
        """Validate on the first so many held-out documents; null means all, or 1000 of a stream."""
        text_field: str = "text"
        """Column of the text."""
        streaming: bool = False
        """Read while training, instead of downloading and tokenising everything first."""

        @property
        def remote(self) -> str | None:
            """What would have to be fetched to open it; None for a folder, or a format with local files."""
            files = self.data_files or []
            here = bool(files) and "/" not in self.name and not any("://" in file for file in files)
            return None if here or Path(self.name).exists() else f"corpus {self.name}"

    def __init__(self, config: Config):
        self._config = config

    def _load(self, split: str) -> Any:
        return reading.load(
            "data.corpus hub",
            self._config.name,
            **self._config.model_dump(include={"revision", "data_files", "streaming"}),
            **{"name": self._config.config} if self._config.config else {},
            split=split,
        )

    @cached_property
    def _train(self) -> Any:
        return self._load(self._config.split)

    @cached_property
    def _validation(self) -> Any:
        return self._load(self._config.validation_split) if self._config.validation_split else self._train

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 of the library's fingerprint of the data (a stream has none) and of all settings."""
        prints = [getattr(rows, "_fingerprint", None) for rows in (self._train, self._validation)]
        return store.key(prints=prints, **self._config.model_dump())

    def texts(self, split: Split) -> Iterator[str]:
        """The documents of a split, in the order of the data set."""
        held_out = split == "validation"
        texts = self._read(self._validation if held_out else self._train)
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
        return holding_out.threshold(self._read(self._train), self._config.validation_fraction)

    def _read(self, rows: Iterable[dict[str, Any]]) -> Iterator[str]:
        return reading.texts("data.corpus hub", rows, self._config.text_field)

    def open(self, tokenizer: Tokenizer, folder: Path) -> Splits:
        """See `Corpus`; of a stream, only the held-out documents are tokenised and kept."""
        if not self._config.streaming:
            stores = tokenised(self, tokenizer, folder)
            return Splits(WindowSource(stores["train"]), HeldOutWindows(stores["validation"]))
        stream = TextStream(self._train, "data.corpus hub", self._config.text_field, self._threshold)
        validation = tokenised(self, tokenizer, folder, ("validation",))["validation"]
        return Splits(StreamSource(stream, tokenizer, self.fingerprint), HeldOutWindows(validation))
