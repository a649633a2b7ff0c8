"""Token ids on disk: written once, then memory-mapped by every process that needs them.

A store is a folder of two splits: `train.ids`, `train.starts` and the same for validation, plus
`meta.json`. Ids are little-endian uint16 or uint32, starts int64. It is written under a temporary name
and renamed, so a store is whole or absent.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthkit.files import replacing_folder, write_json

FORMAT = 1
SPLITS = ("train", "validation")


@dataclass(frozen=True)
class TokenStore:
    """One split as one row of token ids."""

    tokens: NDArray[Any]
    """[N] ids of any integer type, usually a read-only memory map."""
    starts: NDArray[np.int64]
    """[M] position of each document's first token, ascending."""
    sha256: str
    """Of the ids as little-endian uint32, whatever type they are stored in."""

    def summary(self, split: str) -> dict[str, Any]:
        """Counts and hash, each key ending in the split's name or beginning with it."""
        return {
            f"{split}_tokens": len(self.tokens),
            f"{split}_documents": len(self.starts),
            f"{split}_sha256": self.sha256,
        }


def default_folder() -> Path:
    """`$XDG_CACHE_HOME/depthkit`, or `~/.cache/depthkit`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "depthkit"


def key(**parts: Any) -> str:
    """Sha256 of named values; names a cache entry by all that went into it."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def hash_ids(ids: NDArray[Any]) -> bytes:
    """The bytes that a store's sha256 is taken over."""
    return ids.astype("<u4").tobytes()


def write(folder: Path, splits: dict[str, Iterable[NDArray[np.int64]]], vocab_size: int) -> None:
    """Write documents (arrays of ids, already with their bos) of each split to a store at `folder`."""
    dtype = "<u2" if vocab_size <= 2**16 else "<u4"
    with replacing_folder(folder) as temporary:
        meta = {name: _write_split(temporary / name, documents, dtype) for name, documents in splits.items()}
        write_json(temporary / "meta.json", {"dtype": dtype, "splits": meta})


def _write_split(path: Path, documents: Iterable[NDArray[np.int64]], dtype: str) -> dict[str, Any]:
    digest, starts, count = hashlib.sha256(), [], 0
    with open(path.with_suffix(".ids"), "wb") as file:
        for ids in documents:
            file.write(ids.astype(dtype).tobytes())
            digest.update(hash_ids(ids))
            starts.append(count)
            count += len(ids)
    path.with_suffix(".starts").write_bytes(np.asarray(starts, "<i8").tobytes())
    return {"tokens": count, "documents": len(starts), "sha256": digest.hexdigest()}


def read(folder: Path) -> dict[str, TokenStore]:
    """The splits of a store, memory-mapped.

    Raises:
        ValueError: a file is missing or does not have the size that `meta.json` says.
    """
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        return {
            name: _read_split(folder / name, split, meta["dtype"]) for name, split in meta["splits"].items()
        }
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(
            f"{folder}: damaged token cache; delete this folder to rebuild it ({error})"
        ) from None


def _read_split(path: Path, meta: dict[str, Any], dtype: str) -> TokenStore:
    tokens = _map(path.with_suffix(".ids"), dtype, meta["tokens"])
    return TokenStore(tokens, _map(path.with_suffix(".starts"), "<i8", meta["documents"]), meta["sha256"])


def _map(path: Path, dtype: str, count: int) -> NDArray[Any]:
    size, expected = path.stat().st_size, count * np.dtype(dtype).itemsize
    if size != expected:
        raise ValueError(f"{path.name} has {size} bytes, not {expected}")
    return np.memmap(path, dtype, mode="r", shape=(count,)) if count else np.empty(0, dtype)
