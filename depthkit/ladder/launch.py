"""Run the rungs of a ladder in parallel processes; what is finished is not run again."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from depthkit import config as configs
from depthkit.files import write_text
from depthkit.ladder.rung import Outcome, run_rung
from depthkit.ladder.spec import LadderConfig, Rung


def climb(ladder: LadderConfig, folder: Path) -> int:
    """Run what is missing, then write and print the summary. Returns the exit code of `Ladder.execute`.

    Raises:
        ValueError: the folder belongs to another ladder, or a rung cannot be built.
    """
    began = time.monotonic()
    rungs = ladder.rungs()
    _claim(ladder, folder)
    console = Console(highlight=False)
    with _terminable():
        outcomes = _run_all(ladder, rungs, folder, console)

    from depthkit.ladder.summary import summarise

    summary = summarise(ladder, rungs, outcomes, folder)
    summary.save(folder)
    summary.show(console)
    console.print(f"{folder / 'report.html'}   elapsed {time.monotonic() - began:.0f} s")
    return 0 if all(outcome.error is None for outcome in outcomes.values()) else 1


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


def _claim(ladder: LadderConfig, folder: Path) -> None:
    file, text = folder / "ladder.yaml", configs.to_yaml(ladder)
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise ValueError(f"{folder}: holds another ladder (see {file}); give another --run-dir or remove it")
    write_text(file, text)


def _run_all(ladder: LadderConfig, rungs: list[Rung], folder: Path, console: Console) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    with _progress(console) as progress:
        task = progress.add_task("rungs", total=len(rungs))
        for outcome in _outcomes(ladder, rungs, folder):
            outcomes[outcome.name] = outcome
            progress.update(task, advance=1, description=f"last: {outcome.name}")
            if not console.is_terminal:  # a log shows no bar
                console.print(f"{len(outcomes)}/{len(rungs)} {outcome.name}", markup=False)
            if outcome.error is not None:
                progress.console.print(f"failed: {outcome.name}: {outcome.error}", style="red", markup=False)
    return outcomes


def _outcomes(ladder: LadderConfig, rungs: list[Rung], folder: Path) -> Iterator[Outcome]:
    """One outcome a rung, as they finish. Deep rungs start first, so that none is left alone at the end."""
    order = sorted(rungs, key=lambda rung: -rung.config.model.plan().depth)
    # Forking a process that has used threads can hang; spawned workers import what they need once.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(ladder.num_workers(), mp_context=context) as pool:
        waiting: dict[Future[Any], Rung] = {
            pool.submit(run_rung, rung, str(folder / "rungs" / rung.name), ladder.evaluate): rung
            for rung in order
        }
        try:
            for future in as_completed(waiting):
                yield _result(future, waiting[future])
        except (KeyboardInterrupt, GeneratorExit):
            # Workers answer SIGTERM with a checkpoint after the step they are in.
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise


def _result(future: Future[Any], rung: Rung) -> Outcome:
    try:
        return future.result()
    except BrokenProcessPool:
        return Outcome(rung.name, "a worker process died, perhaps out of memory")


def _progress(console: Console) -> Progress:
    return Progress(
        MofNCompleteColumn(),
        BarColumn(20),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
    )
