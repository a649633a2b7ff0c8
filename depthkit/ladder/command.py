"""What `train.py LADDER` does with its options."""

from __future__ import annotations

import argparse
import fnmatch
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from depthkit.ladder.progress import progress
from depthkit.ladder.spec import LadderConfig, Rung
from depthkit.ladder.state import FINISHED, RungFiles
from depthkit.registry import nearest


def execute(ladder: LadderConfig, arguments: argparse.Namespace) -> int:
    """See `Ladder.execute`."""
    for name in ("resume", "resume_from", "full"):
        if getattr(arguments, name, None) not in (None, False):
            warnings.warn(f"--{name.replace('_', '-')} has no effect on a ladder", stacklevel=1)
    rungs = chosen(ladder.rungs(), getattr(arguments, "only", None))
    if arguments.dry_run:
        from depthkit.ladder.plan import print_plan

        print_plan(ladder, rungs)
        return 0
    folder = arguments.run_dir or Path("runs") / f"{arguments.config.stem}-{ladder.fingerprint()}"
    if getattr(arguments, "status", False):
        return show_status(rungs, folder)
    from depthkit.ladder.launch import climb

    try:
        return climb(ladder, folder, rungs, getattr(arguments, "retry", False))
    except KeyboardInterrupt:
        print("stopped; the same command goes on where the rungs stand")
        return 130


def chosen(rungs: Sequence[Rung], patterns: Sequence[str] | None) -> list[Rung]:
    """The rungs whose names match one of some patterns such as `method-lns_*`; all without patterns.

    Raises:
        ValueError: a pattern matches no rung.
    """
    names = [rung.name for rung in rungs]
    for pattern in patterns or ():
        if not fnmatch.filter(names, pattern):
            near = nearest(pattern, names)
            guess = f", did you mean {near!r}?" if near else ""
            raise ValueError(f"--only {pattern!r} matches no rung (--status lists them){guess}")
    matches = [r for r in rungs if any(fnmatch.fnmatchcase(r.name, pattern) for pattern in patterns or ())]
    return matches if patterns else list(rungs)


def show_status(rungs: Sequence[Rung], folder: Path) -> int:
    """Print how every rung stands; returns 0 when all are finished, else 1."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    table = Table(box=None, pad_edge=False)
    for name in ("rung", "state", "step", "loss", "tries", "CPU s", ""):
        table.add_column(name, justify="left" if name in ("rung", "state", "") else "right")
    found: Counter[str] = Counter()
    for rung in rungs:
        files = RungFiles(folder, rung.name)
        state, now = files.state(), progress(files)
        found[state.state] += 1
        loss = "" if now.loss is None else f"{now.loss:.3f}"
        step = f"{now.step}/{rung.config.total_steps}"
        cells = [state.state, step, loss, str(state.attempts), f"{state.seconds:.0f}"]
        table.add_row(Text(rung.name), *cells, Text(state.where or state.error or ""))
    console.print(table)
    console.print(f"{folder}: " + ", ".join(f"{count} {state}" for state, count in found.most_common()))
    return 0 if set(found) <= {FINISHED} else 1
