"""WordNet's data files: words and what they mean."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

PARTS = ("noun", "verb", "adj", "adv")
DEBIAN = Path("/usr/share/wordnet")


class Entry(NamedTuple):
    """Words of one meaning, and that meaning."""

    words: tuple[str, ...]
    gloss: str
    """Without its examples."""


def entries() -> dict[str, list[Entry]]:
    """The entries of every part of speech, in the order of the files.

    Raises:
        ValueError: no such files; the message says where they were looked for and how to get them.
    """
    folder = _folder()
    return {part: _read(folder / f"data.{part}") for part in PARTS}


def _folder() -> Path:
    """Where WordNet's own programs look, then where Debian puts it."""
    named = os.environ.get("WNSEARCHDIR"), os.environ.get("WNHOME")
    places = [Path(named[0])] if named[0] else []
    places += [Path(named[1]) / "dict"] if named[1] else []
    places.append(DEBIAN)
    for place in places:
        if all((place / f"data.{part}").is_file() for part in PARTS):
            return place
    raise ValueError(
        f"no WordNet files data.noun, data.verb, data.adj, data.adv in {', '.join(map(str, places))}: "
        "apt-get install wordnet-base, or set WNSEARCHDIR to the folder that holds them"
    )


def _read(file: Path) -> list[Entry]:
    lines = file.read_text(encoding="latin-1").splitlines()
    try:
        return [_entry(line) for line in lines if not line.startswith("  ")]  # the licence is indented
    except (ValueError, IndexError):
        raise ValueError(f"{file}: is not a data file of WordNet") from None


def _entry(line: str) -> Entry:
    """`offset file type count word id word id ... | gloss; "example"`, the count in hexadecimal."""
    fields, _, gloss = line.partition(" | ")
    parts = fields.split()
    count = int(parts[3], 16)
    words = parts[4 : 4 + 2 * count : 2]
    if not words or not gloss:
        raise ValueError(line)
    return Entry(tuple(word.partition("(")[0] for word in words), gloss.partition('; "')[0].strip())
