"""Token ids on disk: written once, then memory-mapped by every process that needs them.

A store is a folder with `<split>.ids` and `<split>.starts` for each split, plus `meta.json`; where only
some tokens are scored, `<split>.scored` says which, one byte a token. Ids are little-endian uint16 or
uint32, starts int64. It is written under a temporary name and renamed, so a store
is whole or absent.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthkit.files import replacing_folder, write_json

FORMAT = 1
"""Part of every cache key; raised when what is written changes."""


@dataclass(frozen=True)
class TokenStore:
    """One split as one row of N token ids in a file, M documents one after the other."""

    path: Path
    """The file of ids."""
    dtype: str
    """How ids are stored, such as `<u2`."""
    offset: int
    """Bytes before the first id."""
    count: int
    """N."""
    starts: NDArray[np.int64]
    """[M] position of each document's first token, ascending."""
    sha256: str
    """Of the ids (and of which are scored) as little-endian uint32, whatever type they are stored in."""
    scored_path: Path | None = None
    """The file that says which tokens are scored; None is all."""

    @cached_property
    def tokens(self) -> NDArray[Any]:
        """[N] ids as a read-only memory map."""
        if not self.count:  # the system cannot map nothing
            return np.empty(0, self.dtype)
        return np.memmap(self.path, self.dtype, mode="r", offset=self.offset, shape=(self.count,))

    @cached_property
    def scored(self) -> NDArray[np.bool_]:
        """[N] which tokens are scored as targets, as a read-only memory map."""
        assert self.scored_path is not None
        if not self.count:
            return np.empty(0, np.bool_)
        return np.memmap(self.scored_path, np.bool_, mode="r", shape=(self.count,))

    def __getstate__(self) -> dict[str, Any]:
        # A worker opens the file itself: pickling a memory map would send every token.
        return {name: value for name, value in self.__dict__.items() if name not in ("tokens", "scored")}

    def summary(self, split: str) -> dict[str, Any]:
        """Number of tokens and documents and the hash of the ids, each key opening with the split's name."""
        return {
            f"{split}_tokens": self.count,
            f"{split}_documents": len(self.starts),
            f"{split}_sha256": self.sha256,
        }


def default_folder() -> Path:
    """`$XDG_CACHE_HOME/depthkit`, or `~/.cache/depthkit`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "depthkit"


def key(**parts: Any) -> str:
    """Sha256 of named values; names a cache entry by all that went into it."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def hash_bytes(ids: NDArray[Any]) -> bytes:
    """What a store's sha256 is taken over."""
    return ids.astype("<u4").tobytes()


def write(folder: Path, splits: Mapping[Any, Iterable[NDArray[np.int64]]], vocab_size: int) -> None:
    """Write the documents of each split to a store at `folder`.

    A document is [n] ids, already with their bos, or [2, n] ids above whether each is scored (0 or 1).

    Raises:
        OSError: the folder cannot be written, for example because the disk is full; nothing is left then.
    """
    dtype = "<u2" if vocab_size <= 2**16 else "<u4"
    with replacing_folder(folder) as temporary:
        meta = {name: _write_split(temporary / name, documents, dtype) for name, documents in splits.items()}
        write_json(temporary / "meta.json", {"dtype": dtype, "splits": meta})


def _write_split(path: Path, documents: Iterable[NDArray[np.int64]], dtype: str) -> dict[str, Any]:
    digest, starts, count, masked = hashlib.sha256(), [], 0, False
    with open(path.with_suffix(".ids"), "wb") as file, open(path.with_suffix(".scored"), "wb") as mask:
        for document in documents:
            ids, *scored = np.atleast_2d(document)
            file.write(ids.astype(dtype).tobytes())
            for row in scored:
                masked = True
                mask.write(row.astype(np.bool_).tobytes())
            digest.update(hash_bytes(document))
            starts.append(count)
            count += len(ids)
    if not masked:
        path.with_suffix(".scored").unlink()
    path.with_suffix(".starts").write_bytes(np.asarray(starts, "<i8").tobytes())
    facts = {"tokens": count, "documents": len(starts), "sha256": digest.hexdigest()}
    return facts | ({"masked": True} if masked else {})


def read(folder: Path) -> dict[str, TokenStore]:
    """The splits of a store.

    Raises:
        ValueError: a file is missing or does not have the size that `meta.json` says.
    """
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        return {
            name: _read_split(folder / name, meta["dtype"], split) for name, split in meta["splits"].items()
        }
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"{folder}: damaged token cache, delete it to rebuild it ({error})") from None


def _read_split(path: Path, dtype: str, meta: dict[str, Any]) -> TokenStore:
    ids, starts = path.with_suffix(".ids"), path.with_suffix(".starts")
    scored = path.with_suffix(".scored") if meta.get("masked") else None
    sizes = {ids: meta["tokens"] * np.dtype(dtype).itemsize, starts: meta["documents"] * 8}
    for file, size in (sizes | ({scored: meta["tokens"]} if scored else {})).items():
        if file.stat().st_size != size:
            raise ValueError(f"{file.name} does not hold {size} bytes")
    return TokenStore(ids, dtype, 0, meta["tokens"], np.fromfile(starts, "<i8"), meta["sha256"], scored)
