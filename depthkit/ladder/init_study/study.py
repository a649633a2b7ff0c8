"""Run a study: measure every model, put the numbers together, write and print them."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from depthkit import config as configs
from depthkit.files import write_json, write_text
from depthkit.ladder.init_study.findings import Findings, gather
from depthkit.ladder.init_study.measure import Measured, measure_safely
from depthkit.ladder.init_study.page import page_text
from depthkit.ladder.init_study.pictures import save_page_picture, save_pictures
from depthkit.ladder.init_study.spec import StudyConfig
from depthkit.ladder.init_study.tables import content, curves_csv, metrics_csv, show
from depthkit.ladder.spec import Rung


def study(config: StudyConfig, folder: Path, source: Path, page: Path | None = None) -> int:
    """Measure everything; write `study.yaml`, `metrics.csv`, `curves.csv`, `study.json` and `plots/`.

    Args:
        config: the study.
        folder: where the files go; what is there is replaced.
        source: the config file, for the page's command.
        page: a Markdown page to write too, with its picture in `images/` beside it.

    Returns 0, or 1 when some model could not be measured.
    """
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    findings = look(config, console)
    save(findings, folder)
    show(findings, console)
    if page is not None:
        picture = save_page_picture(findings, page.parent / "images" / f"{page.stem}.png")
        write_text(page, page_text(findings, source, page, picture))
    console.print(f"{folder}   {findings.seconds:.0f} s of CPU time")
    return 1 if findings.failed else 0


def look(config: StudyConfig, console: Console | None = None) -> Findings:
    """Measure every model of a study in worker processes; a model that fails ends alone."""
    rungs = config.rungs()
    with _progress(console) as progress:
        measured = list(progress.track(_measured(config, rungs), total=len(rungs), description="models"))
    return gather(config, measured, config.refused())


def _measured(config: StudyConfig, rungs: list[Rung]) -> Iterator[Measured]:
    one = partial(measure_safely, probes=config.probes, jacobians=config.jacobians)
    if config.num_workers() == 1:
        yield from map(one, rungs)
        return
    # Forking a process that has used threads can hang; spawned workers import what they need once.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(config.num_workers(), mp_context=context) as pool:
        yield from pool.map(one, rungs)


def _progress(console: Console | None) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    quiet = console is None or not console.is_terminal
    return Progress(*columns, console=console, transient=True, disable=quiet)


def save(findings: Findings, folder: Path) -> None:
    """Write the resolved study, the tables, every number, and the pictures."""
    write_text(folder / "study.yaml", configs.to_yaml(findings.study))
    write_text(folder / "metrics.csv", metrics_csv(findings))
    write_text(folder / "curves.csv", curves_csv(findings))
    write_json(folder / "study.json", content(findings))
    save_pictures(findings, folder / "plots")


def plan(config: StudyConfig) -> int:
    """Print what would be measured; returns the exit code."""
    rungs = config.rungs()
    print(f"{len(rungs)} models: {', '.join(dict.fromkeys(rung.place['method'] for rung in rungs))}")
    for kind, reason in config.refused().items():
        print(f"not included: {kind}: {reason}")
    return 0
