"""What a launcher does: it takes tasks, and says when they have ended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from depthkit.ladder.rung import Task, run_rung
from depthkit.ladder.state import State
from depthkit.registry import Spec


class Handle(ABC):
    """A task that was handed over."""

    @abstractmethod
    def poll(self) -> State | str | None:
        """None while it runs; then how it ended, or (when its process died) in words what happened."""


class Launcher(ABC):
    """A place where rungs run.

    Args:
        config: its settings.
        folder: the ladder's; logs of jobs go under it.
        job: what is run of each task; another one in tests.
    """

    class Config(Spec):
        """Settings of the place."""

        def check(self) -> None:
            """Refuse a place that is not there.

            Raises:
                ValueError: what is missing, and what to do.
            """

    def __init__(self, config: Any, folder: Path, job: Callable[[Task], State] = run_rung):
        self.config, self.folder, self.job = config, folder, job

    @staticmethod
    @abstractmethod
    def workers(config: Any) -> int:
        """How many rungs these settings let run at a time."""

    @property
    def capacity(self) -> int:
        """How many tasks it takes at a time."""
        return self.workers(self.config)

    @property
    def threads(self) -> int | None:
        """CPU threads of a rung that leaves them open."""
        return None

    @abstractmethod
    def submit(self, tasks: Sequence[Task]) -> list[Handle]:
        """Hand over tasks, at most as many as there is room for."""

    @abstractmethod
    def stop(self) -> None:
        """Ask everything that runs to save and leave, and wait until it has."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held; nothing runs any more."""
