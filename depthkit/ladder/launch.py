"""Run the rungs of a ladder that are missing, retry those that fail, and write the summary."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from depthkit.ladder.claim import claim
from depthkit.ladder.launchers.base import Handle, Launcher
from depthkit.ladder.live import Board
from depthkit.ladder.rung import Task
from depthkit.ladder.spec import LadderConfig, Rung
from depthkit.ladder.state import ELSEWHERE, FAILED, FINISHED, MARKED, RungFiles, State

POLL = 0.2
"""Seconds between looks at what runs."""


def climb(ladder: LadderConfig, folder: Path, only: Sequence[Rung] | None = None, retry: bool = False) -> int:
    """Run what is missing, then write and print the summary. Returns the exit code of `Ladder.execute`.

    Args:
        ladder: the ladder.
        folder: where its rungs go; what is finished there is not run again.
        only: the rungs to run; None is all. The summary is about all that are finished.
        retry: whether rungs that were marked as failed are tried again.

    Raises:
        ValueError: the folder belongs to another ladder, a rung of it has changed, or one cannot be built.
    """
    began, folder = time.monotonic(), folder.resolve()
    rungs = ladder.rungs()
    ladder.launch.check()
    claim(ladder, rungs, folder)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    run = Climb(ladder, folder, rungs if only is None else only, console)
    with _terminable():
        run.all(retry)

    from depthkit.ladder.summary import summarise

    summary = summarise(ladder, rungs, folder)
    summary.save(folder)
    summary.show(console)
    console.print(f"{folder / 'summary.html'}   elapsed {time.monotonic() - began:.0f} s")
    wanted = [RungFiles(folder, rung.name).state().state for rung in run.rungs]
    return 0 if all(state == FINISHED for state in wanted) else 1


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM acts like Ctrl-C within the block."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Climb:
    """One launch: what waits, what runs, and what came of it."""

    def __init__(self, ladder: LadderConfig, folder: Path, rungs: Sequence[Rung], console: Console):
        self.ladder, self.folder, self.rungs = ladder, folder, list(rungs)
        self.files = {rung.name: RungFiles(folder, rung.name) for rung in rungs}
        self.board = Board(self.rungs, self.files, ladder.evaluate, console)
        self.launcher: Launcher = ladder.launch.component(ladder.launch, folder)
        self._waiting: deque[Rung] = deque()
        self._running: dict[str, tuple[Rung, Handle]] = {}
        self._elsewhere: dict[str, Rung] = {}
        self._tries: dict[str, int] = {}

    def all(self, retry: bool) -> None:
        """Run every rung that is neither finished nor marked; deep ones first, so none is left at the end."""
        states = {rung.name: self.files[rung.name].state() for rung in self.rungs}
        done = (FINISHED,) if retry else (FINISHED, *MARKED)
        missing = [rung for rung in self.rungs if states[rung.name].state not in done]
        self._waiting.extend(sorted(missing, key=lambda rung: -rung.config.model.plan().depth))
        for rung in self.rungs:
            if rung not in missing and states[rung.name].state in MARKED:
                self.board.say(f"{rung.name} {states[rung.name].state} before; --retry tries it again")
        try:
            with self.board:
                while self._waiting or self._running or self._elsewhere:
                    self._turn()
        except BaseException:
            self.launcher.stop()
            raise
        finally:
            self.launcher.close()

    def _turn(self) -> None:
        """Hand over what there is room for, and see what has ended."""
        room = self.launcher.capacity - len(self._running)
        batch = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        if batch:
            handles = self.launcher.submit([self._task(rung) for rung in batch])
            self._running |= {r.name: (r, h) for r, h in zip(batch, handles, strict=True)}
        self.board.update(self._running)
        for rung, handle in list(self._running.values()):
            ended = handle.poll()
            if ended is not None:
                del self._running[rung.name]
                self._ended(rung, ended)
        self._look_elsewhere()
        if self._running or self._elsewhere:
            time.sleep(POLL)

    def _task(self, rung: Rung) -> Task:
        return Task(rung, self.folder, self.ladder.evaluate, self.launcher.threads)

    def _ended(self, rung: Rung, ended: State | str) -> None:
        state = self._died(rung, ended) if isinstance(ended, str) else ended
        if state.state == ELSEWHERE:
            self._elsewhere[rung.name] = rung
            self.board.say(f"{rung.name} is run by another launcher; waiting for it")
            return
        tries = self._tries[rung.name] = self._tries.get(rung.name, 0) + 1
        if state.state == FAILED and tries <= self.ladder.retries:
            self._waiting.append(rung)
            self.board.say(f"retrying {rung.name}: {state.error}")
            return
        self.board.ended(rung, state)

    def _died(self, rung: Rung, reason: str) -> State:
        """Mark a rung whose process could not do so itself."""
        files = self.files[rung.name]
        if files.locked():  # the process lives on, out of sight
            return State(ELSEWHERE)
        return files.write(replace(files.state(), state=FAILED, error=reason))

    def _look_elsewhere(self) -> None:
        """Take back rungs that another launcher has let go of."""
        for rung in list(self._elsewhere.values()):
            if self.files[rung.name].locked():
                continue
            del self._elsewhere[rung.name]
            state = self.files[rung.name].state()
            if state.state in (FINISHED, *MARKED):
                self.board.ended(rung, state)
            else:
                self._waiting.append(rung)
