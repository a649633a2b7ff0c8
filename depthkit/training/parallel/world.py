"""What torchrun tells a process: which one it is, of how many."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import NamedTuple


class ToldElsewhere(ValueError):
    """An error that another process has already reported: this one ends in the same way, and says nothing."""

    def __init__(self) -> None:
        super().__init__("")


PATIENCE = 1.0
"""Seconds that a process with nothing to say waits before it leaves."""


class World(NamedTuple):
    """One process among those that were started together."""

    rank: int = 0
    """Which process, from 0."""
    size: int = 1
    """How many processes."""
    local_rank: int = 0
    """Which process of this machine: the number of its GPU."""
    restarts: int = 0
    """How often the processes have been started again after one had died."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0


VARIABLES = {
    "rank": "RANK",
    "size": "WORLD_SIZE",
    "local_rank": "LOCAL_RANK",
    "restarts": "TORCHELASTIC_RESTART_COUNT",
}
"""Where torchrun puts each of them."""


def world() -> World:
    """This process' place, from torchrun's environment; one process where that is not set.

    Raises:
        ValueError: a variable that is no number.
    """
    found = {}
    for field, name in VARIABLES.items():
        text = os.environ.get(name)
        if text is None:
            continue
        if not text.isdigit():
            raise ValueError(f"{name}: {text!r} in the environment, where torchrun puts a whole number")
        found[field] = int(text)
    return World(**found)


@contextlib.contextmanager
def told_once() -> Iterator[None]:
    """Errors of a user's making in the block, which all processes meet alike, are reported by the first.

    Raises:
        ToldElsewhere: in the place of such an error, on the others.
    """
    try:
        yield
    except (ValueError, OSError):
        if world().is_first:
            raise
        leave_later()
        raise ToldElsewhere from None


def leave_later() -> None:
    """Wait a moment: torchrun ends all processes when one has left, and another one still has to speak."""
    time.sleep(PATIENCE)
