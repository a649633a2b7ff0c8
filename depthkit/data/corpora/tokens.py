"""Text that was turned into token ids elsewhere: a `.npy` array or a raw `.bin` file."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from depthkit.data import store
from depthkit.data.interfaces import Split, Splits, Tokenizer
from depthkit.data.loader import HeldOutWindows, WindowSource
from depthkit.data.registries import CORPORA
from depthkit.data.store import TokenStore
from depthkit.registry import Spec, unknown

CHUNK = 2**22


@CORPORA.register("tokens")
class TokenFiles:
    """Token ids in one row: `.npy`, or `.bin` as raw little-endian integers.

    `data.tokenizer` is the one that made them (kind `file` or `hub`), or `{kind: ids, vocab_size: N}`.
    """

    class Config(Spec):
        """Which files, and what is held out."""

        path: str
        """A `.npy` or `.bin` file of ids."""
        validation: str | None = None
        """Another to validate on; null holds out the end of `path`."""
        validation_fraction: float = Field(0.05, gt=0, lt=1)
        """Share of the ids held out without `validation`; the cut moves on to the next document's start."""
        dtype: Literal["uint16", "uint32", "int32", "int64"] = "uint16"
        """Integer type of a `.bin` file; a `.npy` file says its own."""
        separator: int | None = Field(None, ge=0)
        """Id that marks documents; null means one document a file."""
        separator_at: Literal["start", "end"] = "start"
        """Whether the separator opens documents, as a bos does, or closes them."""

    def __init__(self, config: Config):
        self._config = config

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 of the ids and of how they are split."""
        hashes = {name: split.sha256 for name, split in self._stores.items()}
        return store.key(**hashes, separator=self._config.separator, at=self._config.separator_at)

    def texts(self, split: Split) -> Iterator[str]:
        """Refused: the text is gone.

        Raises:
            ValueError: always.
        """
        raise ValueError("data.corpus tokens: holds token ids, so no tokenizer can be trained on its text")

    def open(self, tokenizer: Tokenizer, folder: Path) -> Splits:
        """See `Corpus`; the ids stay where they are."""
        for split in self._stores.values():
            _check_ids(split, tokenizer.vocab_size)
        return Splits(WindowSource(self._stores["train"]), HeldOutWindows(self._stores["validation"]))

    @cached_property
    def _stores(self) -> dict[str, TokenStore]:
        train = self._open("path", self._config.path)
        stores = _cut(train, self._config.validation_fraction)
        if self._config.validation is not None:
            stores = {"train": train, "validation": self._open("validation", self._config.validation)}
        return {name: dataclasses.replace(split, sha256=_sha256(split)) for name, split in stores.items()}

    def _open(self, key: str, name: str) -> TokenStore:
        path = Path(name).expanduser()
        if path.suffix not in READERS:
            raise ValueError(f"data.corpus.{key}: {path}: {unknown('format', path.suffix, READERS)}")
        if not path.is_file() or not path.stat().st_size:
            raise ValueError(f"data.corpus.{key}: {path} is {'empty' if path.is_file() else 'missing'}")
        try:
            dtype, offset, count = READERS[path.suffix](path, self._config.dtype)
        except ValueError as error:
            raise ValueError(f"data.corpus.{key}: {path}: {error}") from None
        return self._with_documents(TokenStore(path, dtype, offset, count, np.zeros(1, np.int64), ""))

    def _with_documents(self, whole: TokenStore) -> TokenStore:
        if self._config.separator is None:
            return whole
        found = [np.flatnonzero(chunk == self._config.separator) + at for at, chunk in _chunks(whole)]
        starts = np.concatenate(found) + (self._config.separator_at == "end")
        starts = np.union1d(whole.starts, starts[starts < whole.count])
        return dataclasses.replace(whole, starts=starts)


def _read_npy(path: Path, dtype: str) -> tuple[str, int, int]:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not array.size:
        raise ValueError(f"must hold one row of integers (got {array.dtype}, shape {array.shape})")
    return array.dtype.str, array.offset, array.size


def _read_bin(path: Path, dtype: str) -> tuple[str, int, int]:
    item = np.dtype(dtype).newbyteorder("<")
    count, left = divmod(path.stat().st_size, item.itemsize)
    if left:
        raise ValueError(f"its size is not a multiple of the {item.itemsize} bytes of dtype {dtype}")
    return item.str, 0, count


READERS = {".npy": _read_npy, ".bin": _read_bin}
"""Suffix -> a function from path and configured dtype to dtype, offset of the first id and count."""


def _chunks(split: TokenStore) -> Iterator[tuple[int, NDArray[Any]]]:
    for at in range(0, split.count, CHUNK):
        yield at, split.tokens[at : at + CHUNK]


def _sha256(split: TokenStore) -> str:
    digest = hashlib.sha256()
    for _, chunk in _chunks(split):
        digest.update(store.hash_bytes(chunk))
    return digest.hexdigest()


def _check_ids(split: TokenStore, vocab_size: int) -> None:
    for at, chunk in _chunks(split):
        bad = np.flatnonzero((chunk < 0) | (chunk >= vocab_size))
        if bad.size:
            raise ValueError(
                f"data.corpus: {split.path}: id {chunk[bad[0]]} at position {at + bad[0]} is outside the "
                f"tokenizer's vocabulary of {vocab_size}; data.tokenizer must be the one that made the ids, "
                "or {kind: ids, vocab_size: ...}"
            )


def _cut(whole: TokenStore, fraction: float) -> dict[str, TokenStore]:
    """Hold out the end, from the first document that starts in the last `fraction` of the ids."""
    cut = int(whole.count * (1 - fraction))
    later = whole.starts[whole.starts >= cut]
    cut = int(later[0]) if later.size else cut
    return {"train": _part(whole, 0, cut), "validation": _part(whole, cut, whole.count)}


def _part(whole: TokenStore, first: int, last: int) -> TokenStore:
    inside = whole.starts[(whole.starts > first) & (whole.starts < last)] - first
    return dataclasses.replace(
        whole,
        offset=whole.offset + first * np.dtype(whole.dtype).itemsize,
        count=last - first,
        starts=np.concatenate([np.zeros(1, np.int64), inside]),
    )
