"""What the terminal shows: a table by layer, the summary, a progress bar with the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from depthkit.utilization.report.compare import Comparison
from depthkit.utilization.report.figures import TABLE, short
from depthkit.utilization.report.report import Report
from depthkit.utilization.report.training import COLUMNS, Trajectory

MOST_ROWS = 40


def print_report(console: Console, report: Report) -> None:
    """The table by visit, then the summary and the cost."""
    console.print(visit_table(report))
    for sentence in report.content["summary"]:
        console.print(f"  {sentence}", highlight=False)
    held = ", ".join(report.content["canaries"])
    console.print(
        f"  Canaries held: {held}. {report.content['timing']['layer_evals']} layer evaluations.", style="dim"
    )


def visit_table(report: Report) -> Table:
    """One row a visit; of a very deep model, the first and the last ones."""
    columns = [(name, label) for name, label in TABLE if name in report.metrics]
    table = _table(f"{report.name}: {report.depth} {report.visit_noun}s, counted from 0")
    for heading in (report.visit_noun, *(["key"] if report.visit_noun == "visit" else [])):
        table.add_column(heading, justify="right")
    for _, label in columns:
        table.add_column(label, justify="right")
    for row in _shown(report.content["per_visit"]):
        keys = [row["key"]] if report.visit_noun == "visit" else []
        table.add_row(
            str(row["visit"]), *keys, *(short(row[name], 3) for name, _ in columns), end_section=row["last"]
        )
    return table


def _table(title: str) -> Table:
    return Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))


def _shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    half = MOST_ROWS // 2
    kept = rows if len(rows) <= MOST_ROWS else rows[:half] + rows[-half:]
    return [row | {"last": len(rows) > MOST_ROWS and index == half - 1} for index, row in enumerate(kept)]


def print_trajectory(console: Console, trajectory: Trajectory) -> None:
    """One row a checkpoint."""
    table = _table("utilization over training")
    for heading in ("step", "loss", *COLUMNS.values()):
        table.add_column(heading, justify="right")
    for row in trajectory.rows():
        table.add_row(*(short(value) for value in row.values()))
    console.print(table)


def print_comparison(console: Console, comparison: Comparison) -> None:
    """One column a model, then a sentence a pair."""
    models = comparison.content["models"]
    table = _table("comparison")
    table.add_column("")
    for model in models:
        table.add_column(model["name"], justify="right")
    table.add_row("loss (nats)", *(short(model["baseline"]["loss_nats"]) for model in models))
    table.add_row("depth", *(str(model["depth"]) for model in models))
    for name in COLUMNS:
        table.add_row(name, *(short(model["scalars"].get(name)) for model in models))
    console.print(table)
    for sentence in comparison.content["summary"]:
        console.print(f"  {sentence}", highlight=False)


@contextmanager
def progress_bar(console: Console, words: str) -> Iterator[Callable[[float, float], None]]:
    """A bar in layer evaluations; yields what `evaluate` wants as `progress`. Gone when done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} layer evaluations"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(words, total=1)
        yield lambda done, total: progress.update(task, completed=done, total=total)
