"""metrics.jsonl: everything a run measured, one JSON object a line, appended as it happens."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

from depthkit import files
from depthkit.training.append import Appender

Row = dict[str, Any]


class MetricsLog:
    """The rows of one run. Every row has `event` and `step`; undefined numbers are null."""

    def __init__(self, path: Path):
        self.path = path
        self._appender: Appender | None = None

    def append(self, event: str, step: int, **values: Any) -> Row:
        """Write one row and return it.

        Raises:
            OSError: it could not be written; the file is as it was before.
        """
        row = {"event": event, "step": step, **_finite(values)}
        if self._appender is None:
            self._appender = Appender(self.path)
        self._appender.write((json.dumps(row) + "\n").encode())
        return row

    def close(self) -> None:
        """Let go of the file."""
        if self._appender is not None:
            self._appender.close()
            self._appender = None

    def rewind(self, step: int) -> None:
        """Move rows past `step` to metrics.discarded.jsonl, and half a last line with them.

        Both files are replaced whole. Being stopped between the two and repeated loses and doubles nothing.
        """
        kept: list[str] = []
        discarded: list[str] = []
        for line in _lines(self.path):
            row = _parsed(line)
            (kept if row is not None and row["step"] <= step else discarded).append(line)
        if discarded:
            _add_once(self.path.with_name("metrics.discarded.jsonl"), "".join(discarded))
            files.write_text(self.path, "".join(kept))


def read(path: Path, event: str | None = None) -> list[Row]:
    """The rows of a metrics file, all or those of one event; half a last line is left out."""
    rows = [row for line in _lines(path) if (row := _parsed(line)) is not None]
    return [row for row in rows if event in (None, row["event"])]


def _lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [line if line.endswith("\n") else line + "\n" for line in text.splitlines(keepends=True)]


def _parsed(line: str) -> Row | None:
    with contextlib.suppress(json.JSONDecodeError):
        return json.loads(line)
    return None


def _add_once(path: Path, text: str) -> None:
    held = path.read_text(encoding="utf-8") if path.exists() else ""
    if not held.endswith(text):
        files.write_text(path, held + text)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
