"""Files that are either whole or absent: write to a temporary name, fsync, rename."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` (same suffix) that replaces it when the block ends without an error.

    On an error, a full disk included, the temporary file is removed and `path` keeps its old content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that becomes `path` when the block ends without an error.

    An existing `path` is replaced: it is renamed away first, and put back if the second rename fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        put_in_place(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def put_in_place(temporary: Path, path: Path) -> None:
    """Force a finished folder and all in it onto the disk, and rename it to `path`, which it replaces."""
    for file in temporary.rglob("*"):
        _sync(file)
    _sync(temporary)
    _swap(temporary, path)
    _sync(path.parent)


def _swap(new: Path, path: Path) -> None:
    if not path.exists():
        os.replace(new, path)
        return
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    os.replace(path, old)
    try:
        os.replace(new, path)
    except BaseException:
        os.replace(old, path)
        raise
    shutil.rmtree(old)


def _sync(path: Path) -> None:
    """Force a file, or the names in a folder, onto the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Atomically replace `path` with UTF-8 text."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Atomically replace `path` with JSON; NaN and infinity are refused rather than written."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")
