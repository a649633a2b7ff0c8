"""For a corpus that is token ids already, when the tokenizer that made them is not at hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from depthkit.data import store
from depthkit.data.interfaces import Corpus, Mark
from depthkit.data.registries import TOKENIZERS
from depthkit.registry import Spec

REFUSAL = "data.tokenizer ids: only counts ids and cannot read or write text; choose another kind"


@TOKENIZERS.register("ids")
class IdTokenizer:
    """Only the number of ids is known: for `tokens` corpora. Bits per byte are then undefined."""

    class Config(Spec):
        """How many ids there are."""

        vocab_size: int = Field(ge=1)
        """Every id of the corpus is below it."""

    def __init__(self, config: Config, corpus: Corpus, folder: Path):
        self.vocab_size = config.vocab_size
        self.bos: int | None = None
        self.eos: str | None = None
        self.marks: dict[str, Mark] = {}
        self.chat_template: str | None = None
        self.fingerprint = store.key(kind="ids", vocab_size=config.vocab_size)

    @property
    def byte_lengths(self) -> NDArray[np.int64]:
        """[vocab_size] zeros: how much text an id stands for is not known."""
        return np.zeros(self.vocab_size, np.int64)

    def encode(self, text: str) -> NDArray[np.int64]:
        """Refused with a ValueError."""
        raise ValueError(REFUSAL)

    def encode_many(self, texts: list[str]) -> list[NDArray[np.int64]]:
        """Refused with a ValueError."""
        raise ValueError(REFUSAL)

    def decode(self, ids: Iterable[int]) -> str:
        """Refused with a ValueError."""
        raise ValueError(REFUSAL)
