"""Records through the `datasets` library, without its progress bars, log lines and download counts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from depthkit.registry import unknown

CHUNK = 256
"""Records read at once."""


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


class Row(NamedTuple):
    """One record."""

    where: str
    """Its source and number, for messages."""
    fields: dict[str, Any]


def rows(source: str, records: Iterable[dict[str, Any]]) -> Iterator[Row]:
    """Each record with where it stands; errors as in `read`."""
    numbered = iter(enumerate(records))
    while chunk := read(source, numbered, CHUNK):
        yield from chunk


def read(source: str, numbered: Iterator[tuple[int, dict[str, Any]]], count: int) -> list[Row]:
    """The next `count` records, fewer at the end.

    Raises:
        ValueError: records that cannot be parsed.
    """
    with quiet_datasets():
        try:
            found = list(islice(numbered, count))
        except (OSError, ValueError) as error:
            raise ValueError(f"{source}: cannot be read: {reason(error)}") from None
    return [Row(f"{source}: row {number}", fields) for number, fields in found]


def text(row: Row, field: str) -> str:
    """The text field of a record.

    Raises:
        ValueError: the record lacks the field, or holds something else than text in it.
    """
    if field not in row.fields:
        raise ValueError(f"{row.where}: {unknown('text_field', field, row.fields)}")
    if not isinstance(row.fields[field], str):
        kind = type(row.fields[field]).__name__
        raise ValueError(f"{row.where}: text_field {field!r} holds {kind}, not text")
    return row.fields[field]


def reason(error: BaseException) -> str:
    """The first line of an error's message, or of what caused it."""
    error = error.__cause__ or error
    return (str(error).strip() or type(error).__name__).splitlines()[0]
