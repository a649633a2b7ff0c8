"""Which of four words does a dictionary's definition define?"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from depthkit.interop.lm_eval.tasks import TASKS
from depthkit.interop.lm_eval.tasks.base import Document, Task
from depthkit.interop.lm_eval.wordnet import Entry, entries

CHOICES = 4
EXAMPLES = 32
PLAIN = re.compile(r"[a-z]{3,12}")
LENGTH = range(20, 161)
"""Characters of a definition that is asked."""


class Defined(NamedTuple):
    """A word and its definition."""

    word: str
    text: str


@TASKS.register("definition")
class Definition(Task):
    """WordNet definition -> word, among four words of the same part of speech; by PMI.

    The score of a word is log p(word | definition) - log p(word): without the second part, frequent words
    win. log p(word) is asked after the prompt's last line alone (arXiv:2104.08315), not after nothing, where
    few models were trained. Only plain words that do not stand in their own definition are asked.
    """

    metric = "acc_mutual_info"
    prior = "Word:"

    def documents(self) -> list[Document]:
        """As many as asked.

        Raises:
            ValueError: WordNet is not there, or holds fewer words than that.
        """
        return self._every[: self.config.count]

    def examples(self) -> list[Document]:
        """Those after them."""
        return self._every[self.config.count :]

    @cached_property
    def _every(self) -> list[Document]:
        parts = [list(_plain(found)) for found in entries().values()]
        pools = [pool for pool in parts if len({each.word for each in pool}) >= CHOICES]
        asked = [(pool, each) for pool in pools for each in pool]
        if len(asked) < self.config.count:
            raise ValueError(f"definition: WordNet has {len(asked)} words to ask, not {self.config.count}")
        random.Random(self.config.seed).shuffle(asked)
        asked = asked[: self.config.count + EXAMPLES]
        return [self._document(place, pool, each) for place, (pool, each) in enumerate(asked)]

    def _document(self, place: int, pool: list[Defined], asked: Defined) -> Document:
        draw = random.Random(f"{self.config.seed} {place}")
        words = [asked.word]
        while len(words) < CHOICES:
            word = draw.choice(pool).word
            words += [word] if word not in words else []
        draw.shuffle(words)
        return {
            "context": f"Definition: {asked.text}.\n{self.prior}",
            "choices": [f" {word}" for word in words],
            "gold": words.index(asked.word),
        }


def _plain(found: list[Entry]) -> Iterator[Defined]:
    """The first word of each entry, where it can be asked."""
    for entry in found:
        word, text = entry.words[0], entry.gloss.rstrip(".;: ")
        usable = PLAIN.fullmatch(word) is not None and len(text) in LENGTH
        if usable and re.search(rf"\b{word[:4]}", text, re.IGNORECASE) is None:
            yield Defined(word, text)
