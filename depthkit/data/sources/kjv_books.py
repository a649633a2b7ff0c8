"""Questions about the packaged King James text: which book is a verse from?"""

from __future__ import annotations

from collections.abc import Iterator

from depthkit.data import store
from depthkit.data.corpora.kjv import kjv_digest, kjv_verses
from depthkit.data.interfaces import Split
from depthkit.data.reading import Row
from depthkit.data.registries import SOURCES
from depthkit.registry import Spec, unknown

QUESTION = "Which book of the Bible is this verse from?"


@SOURCES.register("kjv_books")
class KjvBooks:
    """A prompt with a verse of the King James Bible, and its book as the response; 31,102 records."""

    class Config(Spec):
        """Which books are asked for."""

        books: list[str] | None = None
        """English names such as `1 Kings`; null is all 66."""

    has_validation = False

    def __init__(self, config: Config):
        self._verses = kjv_verses()
        known = {verse["book"] for verse in self._verses}
        self._books = set(known if config.books is None else config.books)
        for book in sorted(self._books - known):
            raise ValueError(f"data.corpus.source.books: {unknown('book', book, known)}")

    @property
    def fingerprint(self) -> str:
        """Sha256 of the text, the question and the books."""
        return store.key(kind="kjv_books", file=kjv_digest(), question=QUESTION, books=sorted(self._books))

    def rows(self, split: Split) -> Iterator[Row]:
        """A record for every verse, in the order of the canon."""
        for verse in self._verses:
            if verse["book"] in self._books:
                fields = {"prompt": f"{QUESTION}\n\n{verse['text']}", "response": verse["book"]}
                yield Row(f"data.corpus.source kjv_books: {verse['citation']}", fields)
