"""The library lm-eval, imported when a task is asked for."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from types import ModuleType


def import_lm_eval() -> ModuleType:
    """The library.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import lm_eval
    except ImportError as error:
        raise ValueError(f"tasks need the extra tasks: pip install 'depthkit[tasks]' ({error})") from None
    return lm_eval


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Only errors of the library's log inside: what it says of its own defaults is in the report."""
    log = logging.getLogger("lm_eval")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
