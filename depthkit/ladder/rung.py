"""One rung, in whatever process runs it: train, then evaluate."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import Timeout

from depthkit.ladder.spec import Rung
from depthkit.ladder.state import DIVERGED, ELSEWHERE, FAILED, FINISHED, STOPPED, RungFiles, State
from depthkit.utilization.options import EvalOptions


@dataclass(frozen=True)
class Task:
    """All that a process needs to run one rung."""

    rung: Rung
    ladder: Path
    options: EvalOptions
    threads: int | None = None
    """CPU threads, where the rung's own config leaves them open; null leaves PyTorch's choice."""


def run_rung(task: Task) -> State:
    """Train and evaluate what is not yet done; an ordinary run folder holds the result.

    An error ends this rung only: it is written to `rung.json` in the folder and returned. A rung that another
    process is running is left to it and comes back as `elsewhere`.
    """
    files = RungFiles(task.ladder, task.rung.name)
    try:
        with files.lock():
            if files.state().state == FINISHED:
                return files.state()
            return _attempt(task, files)
    except Timeout:
        return State(ELSEWHERE)


def _attempt(task: Task, files: RungFiles) -> State:
    from depthkit.training.trainer import DivergedError

    state, began = files.write(files.state().begun()), time.process_time()
    try:
        ended = _train_and_examine(task, files.run)
        state = replace(state, state=STOPPED if ended else FINISHED, error=ended)
    except DivergedError as error:
        state = replace(state, state=DIVERGED, error=str(error), where=_where(files))
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        state = replace(state, state=FAILED, error=f"{type(error).__name__}: {error}")
    return files.write(replace(state, seconds=round(state.seconds + time.process_time() - began, 2)))


def _train_and_examine(task: Task, path: Path) -> str | None:
    """None when the rung is finished, else why it was stopped."""
    from depthkit.training import checkpoint
    from depthkit.training.device import threads
    from depthkit.training.examine import examine, held_out
    from depthkit.training.run import train

    config, options = task.rung.config, task.options
    with threads(config.train.threads or task.threads):
        ended = train(config, path, resume=True, quiet=True)
        if ended["stopped"]:
            return f"{ended['stopped']} at step {ended['step']}"
        if not (path / "report.json").exists():
            loaded = checkpoint.load(path)
            report = examine(loaded, held_out(loaded, options), options)
            report.save(path, html=options.html, plots=options.plots)
    return None


def _where(files: RungFiles) -> str | None:
    from depthkit.training import metrics

    rows = metrics.read(files.metrics, "diverged")
    return rows[-1]["where"] if rows else None
