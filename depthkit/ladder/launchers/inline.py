"""Rungs one after the other in the launching process, where a debugger reaches them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from depthkit.ladder.launchers.base import Handle, Launcher
from depthkit.ladder.registries import LAUNCHERS
from depthkit.ladder.rung import Task
from depthkit.ladder.state import STOPPED, State


class _Ended(Handle):
    def __init__(self, state: State):
        self._state = state

    def poll(self) -> State:
        """How it ended: it ran while it was handed over."""
        if self._state.state == STOPPED:  # the signal was meant for the ladder as well
            raise KeyboardInterrupt
        return self._state


@LAUNCHERS.register("inline")
class Inline(Launcher):
    """In the launching process, one after the other."""

    @staticmethod
    def workers(config: Any) -> int:
        """One."""
        return 1

    def submit(self, tasks: Sequence[Task]) -> list[Handle]:
        """Run them."""
        return [_Ended(self.job(task)) for task in tasks]

    def stop(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing is held."""
