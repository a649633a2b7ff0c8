"""Rows of text through the `datasets` library, without its progress bars, log lines and download counts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from depthkit.registry import unknown

CHUNK = 256
"""Rows read at once."""


@contextlib.contextmanager
def quiet_datasets() -> Iterator[None]:
    """Silence `datasets`, and keep it from reporting to its servers which formats are read."""
    import datasets

    level, bars = datasets.logging.get_verbosity(), datasets.is_progress_bar_enabled()
    counts = datasets.config.HF_UPDATE_DOWNLOAD_COUNTS
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    datasets.disable_progress_bars()
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = counts
        if bars:
            datasets.enable_progress_bars()


def load(source: str, path: str, **options: Any) -> Any:
    """`datasets.load_dataset(path, **options)`.

    Args:
        source: the setting that named the data, for messages.
        path: a hub name or a format such as `json`.
        options: see `datasets.load_dataset`.

    Raises:
        ValueError: the data set, its configuration or its split cannot be had.
    """
    import datasets

    with quiet_datasets():
        try:
            return datasets.load_dataset(path, **options)
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            raise ValueError(f"{source}: cannot load {path!r}: {reason(error)}") from None


def texts(source: str, rows: Iterable[dict[str, Any]], field: str) -> Iterator[str]:
    """The text field of each row; errors as in `read`."""
    numbered = iter(enumerate(rows))
    while chunk := read(source, numbered, field, CHUNK):
        yield from chunk


def read(source: str, numbered: Iterator[tuple[int, dict[str, Any]]], field: str, count: int) -> list[str]:
    """The text field of the next `count` rows, fewer at the end.

    Raises:
        ValueError: rows that cannot be parsed, lack the field, or hold something else than text in it.
    """
    with quiet_datasets():
        try:
            rows = list(islice(numbered, count))
        except (OSError, ValueError) as error:
            raise ValueError(f"{source}: cannot be read: {reason(error)}") from None
    return [_text(row, field, f"{source}: row {number}") for number, row in rows]


def _text(row: dict[str, Any], field: str, where: str) -> str:
    if field not in row:
        raise ValueError(f"{where}: {unknown('text_field', field, row)}")
    if not isinstance(row[field], str):
        raise ValueError(f"{where}: text_field {field!r} holds {type(row[field]).__name__}, not text")
    return row[field]


def reason(error: BaseException) -> str:
    """The first line of an error's message, or of what caused it."""
    error = error.__cause__ or error
    return (str(error).strip() or type(error).__name__).splitlines()[0]
