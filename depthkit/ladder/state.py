"""How a rung stands: one small file in its folder, written by whoever runs it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from depthkit.files import write_json

FINISHED, FAILED, DIVERGED, STOPPED, RUNNING, WAITING, ELSEWHERE = (
    "finished",
    "failed",
    "diverged",
    "stopped",
    "running",
    "waiting",
    "elsewhere",
)
MARKED = (FAILED, DIVERGED)
"""States in which a rung is left alone until `--retry`."""


@dataclass(frozen=True)
class State:
    """How a rung stands.

    `waiting` has never been started; `running` holds its lock; `stopped` was interrupted and goes on from its
    checkpoint; `failed` and `diverged` are marked; `elsewhere` is run by another launcher.
    """

    state: str = WAITING
    attempts: int = 0
    error: str | None = None
    where: str | None = None
    """Of a diverged rung: the visit at which numbers stopped being finite."""
    seconds: float = 0.0
    """CPU seconds of all attempts that came to an end."""
    host: str = ""
    pid: int = 0

    def begun(self) -> State:
        """The state of an attempt that starts now, in this process."""
        return replace(
            self,
            state=RUNNING,
            attempts=self.attempts + 1,
            error=None,
            where=None,
            host=socket.gethostname(),
            pid=os.getpid(),
        )


class RungFiles:
    """Where the files of one rung of a ladder are."""

    def __init__(self, ladder: Path, name: str):
        self.name = name
        self.run = ladder / "rungs" / name
        self.metrics = self.run / "metrics.jsonl"
        self._state = self.run / "rung.json"
        self._lock = ladder / "locks" / f"{name}.lock"

    def state(self) -> State:
        """How the rung stands; what a killed process left as `running` is `stopped`."""
        found = self._read()
        if found.state == RUNNING and not self.locked():
            return replace(found, state=STOPPED)
        return found

    def _read(self) -> State:
        try:
            return State(**json.loads(self._state.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return State()

    def write(self, state: State) -> State:
        """Replace the state."""
        write_json(self._state, asdict(state))
        return state

    def locked(self) -> bool:
        """Whether a process, here or on another machine, holds the rung at this moment."""
        if not self._lock.exists():
            return False
        try:
            with self._lock_file():
                return False
        except Timeout:
            return True

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the rung; the operating system lets go of it when the process ends, however it ends.

        Raises:
            Timeout: another process holds it.
        """
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        with self._lock_file():
            yield

    def _lock_file(self) -> FileLock:
        # A new object each time: one object may be entered again by its holder, which must not count as free.
        return FileLock(self._lock, timeout=0, is_singleton=False)
