"""What a launch shows while it runs: a live table on a terminal, lines in a log."""

from __future__ import annotations

import time
from collections.abc import Container, Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from depthkit.ladder.progress import done_share, progress, weight
from depthkit.ladder.spec import Rung
from depthkit.ladder.state import FINISHED, MARKED, RUNNING, STOPPED, WAITING, RungFiles, State
from depthkit.utilization.options import EvalOptions

REFRESH = 1.0
"""Seconds between pictures of the live table."""


class Board:
    """The live table of one launch."""

    def __init__(
        self, rungs: Sequence[Rung], files: dict[str, RungFiles], options: EvalOptions, console: Console
    ):
        self.rungs, self.files, self.options, self.console = list(rungs), files, options, console
        found = {rung.name: files[rung.name].state().state for rung in rungs}
        self._states = {n: state if state in (FINISHED, *MARKED) else WAITING for n, state in found.items()}
        self._weights = {rung.name: weight(rung, options) for rung in rungs}
        self._began, self._drawn = time.monotonic(), 0.0
        self._before = self._spent(())
        self._live = Live(console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> Board:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._live.stop()

    def say(self, sentence: str, style: str = "") -> None:
        """Print a line that stays."""
        self.console.print(sentence, style=style, markup=False, soft_wrap=True)

    def ended(self, rung: Rung, state: State) -> None:
        """Note how a rung ended."""
        self._states[rung.name] = state.state
        ended = sum(found != WAITING for found in self._states.values())
        if state.state != FINISHED:
            self.say(f"{state.state}: {rung.name}: {state.error}", "red")
        elif not self.console.is_terminal:  # a log shows no table
            self.say(f"{ended}/{len(self.rungs)} {rung.name} {state.seconds:.0f} s")

    def update(self, running: Container[str]) -> None:
        """Draw the table anew, once a second at most."""
        if self.console.is_terminal and time.monotonic() - self._drawn > REFRESH:
            self._drawn = time.monotonic()
            self._live.update(self._picture(running), refresh=True)

    def _picture(self, running: Container[str]) -> Group:
        table = Table(box=None, pad_edge=False)
        for name in ("running", "step", "loss", "tok/s"):
            table.add_column(name, justify="left" if name == "running" else "right")
        for rung in [rung for rung in self.rungs if rung.name in running][:20]:
            now = progress(self.files[rung.name])
            loss, speed = ("" if v is None else f"{v:,.{d}f}" for v, d in ((now.loss, 3), (now.speed, 0)))
            table.add_row(Text(rung.name), f"{now.step}/{rung.config.total_steps}", loss, speed)
        return Group(table, Text(self._line(running)))

    def _line(self, running: Container[str]) -> str:
        """`12 finished, 2 running, 22 waiting   4:10 elapsed, about 6:30 left`."""
        names = [RUNNING if r.name in running else self._states[r.name] for r in self.rungs]
        order = (FINISHED, *MARKED, STOPPED, RUNNING, WAITING)
        counts = ", ".join(f"{names.count(state)} {state}" for state in order if state in names)
        return f"{counts}   {clock(time.monotonic() - self._began)} elapsed, {self._left(running)}"

    def _left(self, running: Container[str]) -> str:
        spent, total = self._spent(running), sum(self._weights.values())
        speed = (spent - self._before) / (time.monotonic() - self._began)
        return f"about {clock((total - spent) / speed)} left" if speed > 0 else "time left not yet known"

    def _spent(self, running: Container[str]) -> float:
        """Cost that is behind us; what has ended in any way is not waited for."""
        return sum(self._weights[rung.name] * self._share(rung, rung.name in running) for rung in self.rungs)

    def _share(self, rung: Rung, runs: bool) -> float:
        if not runs and self._states[rung.name] != WAITING:
            return 1.0
        return done_share(rung, self.files[rung.name], self.options)


def clock(seconds: float) -> str:
    """`4:05`, or `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
