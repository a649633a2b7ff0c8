"""UTF-8 bytes as tokens: nothing to train, nothing to download, every text round-trips."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from depthkit.data.interfaces import Corpus, Mark
from depthkit.data.registries import TOKENIZERS
from depthkit.registry import Spec


@TOKENIZERS.register("bytes")
class ByteTokenizer:
    """The 256 byte values and a bos mark: 257 ids."""

    class Config(Spec):
        """No settings."""

    def __init__(self, config: Config, corpus: Corpus, folder: Path):
        self.vocab_size = 257
        self.bos: int | None = 256
        self.eos: str | None = None
        self.marks = {"<bos>": Mark(256)}
        self.chat_template: str | None = None
        self.fingerprint = hashlib.sha256(b"utf-8 bytes, bos 256").hexdigest()

    @property
    def byte_lengths(self) -> NDArray[np.int64]:
        """[257] one byte an id, none for bos."""
        return np.array([1] * 256 + [0])

    def encode(self, text: str) -> NDArray[np.int64]:
        """The UTF-8 bytes of the text."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)

    def encode_many(self, texts: list[str]) -> list[NDArray[np.int64]]:
        """`encode` of each text."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the bytes; bos is left out, and bytes that are no UTF-8 become U+FFFD."""
        return bytes(int(i) for i in ids if i < 256).decode(errors="replace")
