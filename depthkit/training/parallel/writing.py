"""How a run's checkpoints come onto the disk; the base writes whole files, from the first rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from depthkit.training import checkpoint
from depthkit.training.parallel.ranks import Ranks


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint that is to be written."""

    root: Path
    """The folder of the run's checkpoints."""
    step: int
    """Optimiser steps behind it."""
    parts: Mapping[str, dict[str, Tensor]]
    """Tensors by name, by the file they go into."""
    state: dict[str, Any]
    """Everything else, as plain JSON data."""
    keep: int
    """How many checkpoints are kept."""


class Checkpoints:
    """Writes them one after the other; all ranks call every method."""

    def __init__(self, ranks: Ranks):
        self.ranks = ranks

    def begin(self, snapshot: Snapshot) -> None:
        """Write a checkpoint; it may be complete only once `finish` has returned.

        Raises:
            OSError: this one, or the one before, could not be written.
        """
        if self.ranks.is_first:
            model, optim = (snapshot.parts[part] for part in (checkpoint.MODEL, checkpoint.OPTIM))
            checkpoint.save(snapshot.root, snapshot.step, model, optim, snapshot.state, snapshot.keep)

    def finish(self) -> None:
        """Wait until what was begun is complete.

        Raises:
            OSError: it could not be written.
        """

    def close(self) -> None:
        """Let what is still being written come to an end, whatever has happened."""
