"""Files of the user's own: jsonl and parquet, and txt where text is wanted."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field

from depthkit.data import reading, store
from depthkit.data.checking import digest
from depthkit.data.interfaces import Split
from depthkit.data.reading import Row
from depthkit.data.registries import SOURCES
from depthkit.registry import Spec, unknown

FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    ".txt": ("text", {"sample_by": "document"}),
    ".jsonl": ("json", {}),
    ".parquet": ("parquet", {}),
}
"""Suffix -> the `datasets` builder that reads it, with its options."""
OF_RECORDS = (".jsonl", ".parquet")


class FileNames(Spec):
    """Which files."""

    paths: list[str] = Field(min_length=1)
    """Files or globs such as `books/**/*.txt`; read sorted: txt, then jsonl, then parquet."""
    validation: list[str] = []
    """Files or globs to validate on; without any, a share of the documents of `paths` is held out."""


@SOURCES.register("files")
class FileRecords:
    """Local jsonl and parquet files; a record is a line or a row."""

    class Config(FileNames):
        """Which files."""

    def __init__(self, config: FileNames, formats: Iterable[str] = OF_RECORDS):
        self._files = {"train": find("data.corpus.paths", config.paths, formats)}
        if config.validation:
            self._files["validation"] = find("data.corpus.validation", config.validation, formats)
        self.has_validation = bool(config.validation)

    @property
    def digests(self) -> dict[str, list[str]]:
        """Sha256 of the content of every file, by split."""
        return {split: [digest(path) for path in paths] for split, paths in self._files.items()}

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 of every file's content."""
        return store.key(kind="files", files=self.digests)

    def rows(self, split: Split) -> Iterator[Row]:
        """The records of a split, file after file."""
        for path in self.paths(split):
            yield from self.read(path)

    def paths(self, split: Split) -> list[Path]:
        """The files of a split."""
        return self._files[split]

    def read(self, path: Path) -> Iterator[Row]:
        """The records of one file."""
        source, (builder, options) = f"data.corpus: {path}", FORMATS[path.suffix]
        # One file at a time, so that an error names its file; streaming, so that nothing is copied to
        # the library's own cache first.
        name = glob.escape(str(path))
        rows = reading.load(source, builder, data_files=[name], split="train", streaming=True, **options)
        return reading.rows(source, rows)


def find(key: str, patterns: list[str], formats: Iterable[str] = FORMATS) -> list[Path]:
    """The files that match, each once, sorted by format and name.

    Raises:
        ValueError: a pattern without a file, or a file of another format.
    """
    order, found = list(formats), set[Path]()
    for pattern in patterns:
        matches = [Path(p) for p in glob.glob(str(Path(pattern).expanduser()), recursive=True)]
        files = [path for path in matches if path.is_file()]
        if not files:
            raise ValueError(f"{key}: no file matches {pattern!r}")
        found.update(files)
    for path in found:
        if path.suffix not in order:
            raise ValueError(f"{key}: {path}: {unknown('format', path.suffix, order)}")
    return sorted(found, key=lambda path: (order.index(path.suffix), str(path)))
