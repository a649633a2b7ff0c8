"""What a person sees while a run trains: a line that updates itself, or in a log file one now and then."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS = 10.0
"""Time between two lines where the line cannot update itself."""


class ProgressLine:
    """step/total, loss, gradient norm, learning rate, tokens a second, MFU, memory, time left."""

    def __init__(self, total: int, step: int, console: Console):
        self.console = console
        self.total = total
        self._spoken = time.monotonic()
        self._start = (self._spoken, step)
        self._bar = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=16),
            TextColumn("{task.description}"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=console.quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=total, completed=step)

    def __enter__(self) -> ProgressLine:
        self._bar.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._bar.stop()

    def update(self, row: dict[str, Any]) -> None:
        """Show one row of training metrics."""
        text = describe(row)
        self._bar.update(self._task, completed=row["step"], description=text)
        now = time.monotonic()
        if self.console.is_terminal or now - self._spoken < SECONDS:
            return
        self._spoken = now
        self.say(f"{row['step']}/{self.total} {text} eta {self._remaining(now, row['step'])}")

    def say(self, text: str) -> None:
        """Print one line that stays."""
        self.console.print(text)

    def _remaining(self, now: float, step: int) -> str:
        since, first = self._start
        seconds = round((now - since) / max(1, step - first) * (self.total - step))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def describe(row: dict[str, Any]) -> str:
    """The numbers of a row of training metrics; what is unknown reads n/a."""
    mfu = "n/a" if row["mfu"] is None else f"{row['mfu']:.1%}"
    return (
        f"loss {_number(row['loss'], '.4f')} grad {_number(row['grad_norm'], '.3f')} lr {row['lr']:.2e} "
        f"{row['tok_s']:,.0f} tok/s mfu {mfu} mem {row['memory_mb']:,.0f} MB"
    )


def _number(value: float | None, style: str) -> str:
    return "n/a" if value is None else format(value, style)
