"""A first look at a data file: is it there, is there anything in it, is it text?"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator
from pathlib import Path

CHUNK = 2**22
TEXT_SUFFIXES = (".txt", ".jsonl")


def digest(path: Path) -> str:
    """Sha256 of a file's content.

    Raises:
        ValueError: the file is empty, or should be text but is not UTF-8 or holds NUL bytes.
        OSError: it cannot be read.
    """
    sha, decoder = hashlib.sha256(), codecs.getincrementaldecoder("utf-8")()
    is_text, size = path.suffix in TEXT_SUFFIXES, 0
    for chunk in _chunks(path):
        if is_text:
            _check_text(path, chunk, decoder, size)
        sha.update(chunk)
        size += len(chunk)
    if not size:
        raise ValueError(f"data.corpus: {path} is empty")
    if is_text:
        _check_text(path, b"", decoder, size, final=True)
    return sha.hexdigest()


def _chunks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


def _check_text(
    path: Path, chunk: bytes, decoder: codecs.IncrementalDecoder, offset: int, final: bool = False
) -> None:
    # UTF-16 without its mark passes as UTF-8 full of NULs.
    pending = len(decoder.getstate()[0])
    try:
        bad = decoder.decode(chunk, final).find("\0")
    except UnicodeDecodeError as error:
        bad = error.start - pending
        raise ValueError(
            f"data.corpus: {path} is binary or not UTF-8: byte {offset + bad} is no text"
        ) from None
    if bad >= 0:
        raise ValueError(f"data.corpus: {path} is binary: it holds a NUL character near byte {offset + bad}")
