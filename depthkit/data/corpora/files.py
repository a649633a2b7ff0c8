"""Text files of the user's own: txt, jsonl and parquet."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field

from depthkit.data import holding_out, reading, store
from depthkit.data.checking import digest
from depthkit.data.interfaces import Split, Splits, Tokenizer
from depthkit.data.loader import HeldOutWindows, WindowSource
from depthkit.data.registries import CORPORA
from depthkit.data.tokenise import tokenised
from depthkit.registry import Spec, unknown

FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    ".txt": ("text", {"sample_by": "document"}),
    ".jsonl": ("json", {}),
    ".parquet": ("parquet", {}),
}
"""Suffix -> the `datasets` builder that reads it, with its options."""


@CORPORA.register("files")
class TextFiles:
    """Local txt (a document each), jsonl and parquet (a document a row) files."""

    class Config(Spec):
        """Which files, and what is held out."""

        paths: list[str] = Field(min_length=1)
        """Files or globs such as `books/**/*.txt`; read sorted: txt, then jsonl, then parquet."""
        validation: list[str] = []
        """Files or globs to validate on; without any, a share of the documents of `paths` is held out."""
        validation_fraction: float = Field(0.05, gt=0, lt=1)
        """Share of documents held out when `validation` is empty, chosen by a hash of their text."""
        text_field: str = "text"
        """Column of the text in jsonl and parquet."""
        separator: str | None = Field(None, min_length=1)
        """String that cuts each text into documents, such as `<|endoftext|>`; it is removed."""

    def __init__(self, config: Config):
        self._config = config
        self._files = {"train": find("data.corpus.paths", config.paths)}
        if config.validation:
            self._files["validation"] = find("data.corpus.validation", config.validation)

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 of every file's content and of how the text is cut and split."""
        files = {split: [digest(path) for path in paths] for split, paths in self._files.items()}
        return store.key(files=files, **self._config.model_dump(exclude={"paths", "validation"}))

    def texts(self, split: Split) -> Iterator[str]:
        """The documents of a split."""
        if self._config.validation:
            return self._documents(split)
        held_out = split == "validation"
        return (t for t in self._documents("train") if (holding_out.place(t) <= self._threshold) == held_out)

    @cached_property
    def _threshold(self) -> float:
        return holding_out.threshold(self._documents("train"), self._config.validation_fraction)

    def _documents(self, split: str) -> Iterator[str]:
        cut = self._config.separator
        for path in self._files[split]:
            for text in self._read(path):
                yield from text.split(cut) if cut else [text]

    def _read(self, path: Path) -> Iterator[str]:
        source, (builder, options) = f"data.corpus: {path}", FORMATS[path.suffix]
        # One file at a time, so that an error names its file; streaming, so that nothing is copied to
        # the library's own cache first.
        name = glob.escape(str(path))
        rows = reading.load(source, builder, data_files=[name], split="train", streaming=True, **options)
        return reading.texts(source, rows, "text" if path.suffix == ".txt" else self._config.text_field)

    def open(self, tokenizer: Tokenizer, folder: Path) -> Splits:
        """See `Corpus`."""
        stores = tokenised(self, tokenizer, folder)
        return Splits(WindowSource(stores["train"]), HeldOutWindows(stores["validation"]))


def find(key: str, patterns: list[str]) -> list[Path]:
    """The files that match, each once, sorted by format and name.

    Raises:
        ValueError: a pattern without a file, or a file of another format.
    """
    found: set[Path] = set()
    for pattern in patterns:
        matches = [Path(p) for p in glob.glob(str(Path(pattern).expanduser()), recursive=True)]
        files = [path for path in matches if path.is_file()]
        if not files:
            raise ValueError(f"{key}: no file matches {pattern!r}")
        found.update(files)
    for path in found:
        if path.suffix not in FORMATS:
            raise ValueError(f"{key}: {path}: {unknown('format', path.suffix, FORMATS)}")
    order = list(FORMATS)
    return sorted(found, key=lambda path: (order.index(path.suffix), str(path)))
