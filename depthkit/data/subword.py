"""What all tokenizers of the `tokenizers` library share."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from depthkit.data.interfaces import Mark
from depthkit.registry import unknown

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Subword:
    """A `tokenizers` tokenizer that reads text as text and nothing else.

    Truncation, padding and added marks that its file may ask for are switched off, and the name of a mark
    inside the text, such as `<s>`, is encoded as ordinary characters.

    Args:
        tokenizer: the library's tokenizer.
        bos: the mark that opens a document, or None for no mark.
        size: ids that count, from 0; None is all. Text that needs a later id is refused.
        eos: the mark that ends a text, or None where none is known.

    Raises:
        ValueError: `bos` is not in the vocabulary, or the vocabulary is smaller than `size`.
    """

    def __init__(
        self, tokenizer: Tokenizer, bos: str | None, size: int | None = None, eos: str | None = None
    ):
        tokenizer.no_truncation()
        tokenizer.no_padding()
        vocab = tokenizer.get_vocab(with_added_tokens=True)
        if bos is not None and bos not in vocab:
            marks = [added.content for added in tokenizer.get_added_tokens_decoder().values()]
            raise ValueError(f"data.tokenizer.bos: {unknown('mark', bos, marks)}")
        self._tokenizer = tokenizer
        self.bos: int | None = None if bos is None else vocab[bos]
        self.eos = eos
        self._ids = max(vocab.values()) + 1
        self.vocab_size = self._ids if size is None else size
        if self.vocab_size > self._ids or (self.bos or 0) >= self.vocab_size:
            raise ValueError(
                f"data.tokenizer.vocab_size: must be at most the tokenizer's {self._ids} ids, and more than "
                f"the id of bos ({self.bos}); got {size}"
            )
        limit = "" if size is None else f" {size}"
        self.fingerprint = hashlib.sha256(f"{bos} {tokenizer.to_str()}{limit}".encode()).hexdigest()

    @cached_property
    def marks(self) -> dict[str, Mark]:
        """The special tokens of the vocabulary, by name."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {
            mark.content: Mark(index, mark.lstrip, mark.rstrip)
            for index, mark in added.items()
            if mark.special and index < self.vocab_size
        }

    @cached_property
    def chat_template(self) -> str | None:
        """See `Tokenizer`; none unless a kind of tokenizer says otherwise."""
        return None

    @cached_property
    def byte_lengths(self) -> NDArray[np.int64]:
        """[vocab_size] bytes of text that each id stands for; 0 for marks.

        Exact for byte-level vocabularies. For others it is what the id adds to a decoded text, which
        is exact too unless decoding depends on the neighbours.
        """
        lengths = np.zeros(self._ids, np.int64)
        measure = _bytes_of_byte_level if self._is_byte_level() else self._bytes_when_decoded
        added = self._tokenizer.get_added_tokens_decoder()
        for token, index in self._tokenizer.get_vocab(with_added_tokens=True).items():
            lengths[index] = len(token.encode()) if index in added else measure(token, index)
        lengths[[index for index, mark in added.items() if mark.special]] = 0
        if self.bos is not None:
            lengths[self.bos] = 0
        return lengths[: self.vocab_size]

    def _is_byte_level(self) -> bool:
        return '"ByteLevel"' in json.dumps(json.loads(self._tokenizer.to_str())["decoder"])

    def _bytes_when_decoded(self, token: str, index: int) -> int:
        if re.fullmatch("<0x[0-9A-F]{2}>", token):  # one byte of a character that has no token of its own
            return 1
        # After another token, because decoders drop the space in front of the first.
        before, after = self._anchor, self._tokenizer.decode([*self._anchor_ids, index])
        return len(after.encode()) - len(before.encode())

    @cached_property
    def _anchor_ids(self) -> list[int]:
        return [min(self._tokenizer.get_vocab(with_added_tokens=False).values())]

    @cached_property
    def _anchor(self) -> str:
        return self._tokenizer.decode(self._anchor_ids)

    def encode(self, text: str) -> NDArray[np.int64]:
        """The ids of the text alone, without bos."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: list[str]) -> list[NDArray[np.int64]]:
        """`encode` of each text, on the library's threads."""
        # Set on every call: the library's pickling forgets it.
        self._tokenizer.encode_special_tokens = True
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [self._within(np.asarray(encoding.ids, np.int64)) for encoding in encodings]

    def _within(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """`ids`, all below `vocab_size`."""
        if self.vocab_size < self._ids and ids.size and ids.max() >= self.vocab_size:
            token = self._tokenizer.id_to_token(int(ids.max()))
            raise ValueError(
                f"data.tokenizer.vocab_size: {self.vocab_size} leaves out {token!r}, id {ids.max()}, which "
                "the text holds"
            )
        return ids

    def to_json(self) -> str:
        """The library's tokenizer as the text of a `tokenizer.json`."""
        return self._tokenizer.to_str()

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; marks are left out."""
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)


def _bytes_of_byte_level(token: str, index: int) -> int:
    return len(token)  # such a vocabulary writes each byte as one printable character
