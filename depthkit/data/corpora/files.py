"""Text files of the user's own: txt, jsonl and parquet."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from pydantic import Field

from depthkit.data import holding_out, reading, store
from depthkit.data.interfaces import Split, Splits, Tokenizer
from depthkit.data.loader import HeldOutWindows, WindowSource
from depthkit.data.registries import CORPORA
from depthkit.data.sources.files import FORMATS, FileNames, FileRecords
from depthkit.data.tokenise import tokenised


@CORPORA.register("files")
class TextFiles:
    """Local txt (a document each), jsonl and parquet (a document a row) files."""

    class Config(FileNames):
        """Which files, and what is held out."""

        validation_fraction: float = Field(0.05, gt=0, lt=1)
        """Share of documents held out when `validation` is empty, chosen by a hash of their text."""
        text_field: str = "text"
        """Column of the text in jsonl and parquet."""
        separator: str | None = Field(None, min_length=1)
        """String that cuts each text into documents, such as `<|endoftext|>`; it is removed."""

    def __init__(self, config: Config):
        self._config = config
        self._files = FileRecords(config, FORMATS)

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 of every file's content and of how the text is cut and split."""
        settings = self._config.model_dump(exclude={"paths", "validation"})
        return store.key(files=self._files.digests, **settings)

    def texts(self, split: Split) -> Iterator[str]:
        """The documents of a split."""
        if self._config.validation:
            return self._documents(split)
        held_out = split == "validation"
        return (t for t in self._documents("train") if (holding_out.place(t) <= self._threshold) == held_out)

    @cached_property
    def _threshold(self) -> float:
        return holding_out.threshold(self._documents("train"), self._config.validation_fraction)

    def _documents(self, split: Split) -> Iterator[str]:
        cut = self._config.separator
        for path in self._files.paths(split):
            field = "text" if path.suffix == ".txt" else self._config.text_field  # the library's own name
            for row in self._files.read(path):
                text = reading.text(row, field)
                yield from text.split(cut) if cut else [text]

    def open(self, tokenizer: Tokenizer, folder: Path) -> Splits:
        """See `Corpus`."""
        stores = tokenised(self, tokenizer, folder)
        return Splits(WindowSource(stores["train"]), HeldOutWindows(stores["validation"]))
