"""manifest.json: the sha256 of every other file of a checkpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from depthkit import files

NAME = "manifest.json"


def write(folder: Path, names: Iterable[str]) -> None:
    """Write the manifest of the named files of `folder`.

    Raises:
        OSError: it could not be written.
    """
    digests = {
        name: {"sha256": _sha256(folder / name), "bytes": (folder / name).stat().st_size} for name in names
    }
    files.write_json(folder / NAME, {"files": digests})


def listed(folder: Path) -> list[str]:
    """The files that the manifest of `folder` names; none where it cannot be read."""
    try:
        return list(json.loads((folder / NAME).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def damage(folder: Path, names: Iterable[str]) -> str | None:
    """What is wrong with the named files of `folder`, in words; None when all are as they were written."""
    try:
        held = json.loads((folder / NAME).read_text(encoding="utf-8"))["files"]
        expected = {name: held[name]["sha256"] for name in names}
    except (OSError, ValueError, KeyError, TypeError):
        return f"{folder / NAME} is missing or damaged"
    for name, sha256 in expected.items():
        file = folder / name
        if not file.exists():
            return f"{file} is missing"
        if _sha256(file) != sha256:
            return f"{file} is damaged: its sha256 is not the one in {NAME}"
    return None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
