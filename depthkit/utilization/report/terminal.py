"""What the terminal shows: a table by layer, the summary, a progress bar with the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from depthkit.utilization.report.compare import Comparison
from depthkit.utilization.report.figures import TABLE, short
from depthkit.utilization.report.report import Report
from depthkit.utilization.report.training import COLUMNS, Trajectory

MOST_ROWS = 40


def print_report(console: Console, report: Report, *, table: bool = True) -> None:
    """The table by visit, if it is wanted, then the summary and the cost."""
    if table:
        console.print(visit_table(report))
    for sentence in report.content["summary"]:
        console.print(f"  {sentence}", highlight=False)
    for skipped in report.content["skipped"]:
        words = f"  Left out: {skipped['metric']}: {skipped['reason']}."
        console.print(words, style="yellow", highlight=False)
    held = ", ".join(report.content["canaries"])
    cost = f"{short(report.content['timing']['layer_evals'])} layer evaluations"
    cost += (
        "".join(f", {short(n['timing']['layer_evals'])} more for {k}" for k, n in report.nulls.items()) + "."
    )
    console.print(f"  [green]Canaries held: {held}.[/] [dim]{cost}[/]", highlight=False)


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
    if any(model["baseline"]["bits_per_byte"] is not None for model in models):
        table.add_row("bits a byte", *(short(model["baseline"]["bits_per_byte"]) for model in models))
    table.add_row("depth", *(str(model["depth"]) for model in models))
    for name in COLUMNS:
        table.add_row(name, *(short(model["scalars"].get(name)) for model in models))
    console.print(table)
    for model in models:
        console.print(f"  [b]{model['name']}[/]", highlight=False)
        for sentence in model["summary"]:
            console.print(f"    {sentence}", highlight=False)
    for sentence in comparison.content["summary"]:
        console.print(f"  {sentence}", highlight=False)


@contextmanager
def progress_bar(console: Console, words: str) -> Iterator[Callable[[float, float], None]]:
    """A bar in layer evaluations; yields what `evaluate` wants as `progress`. Gone when done.

    The cost is printed before the work begins; probes that decide as they go add to it.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("layer evaluations"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(words, total=None)

        def show(done: float, total: float) -> None:
            if progress.tasks[0].total is None:
                console.print(f"  {words}: {total:.0f} layer evaluations", style="dim", highlight=False)
            progress.update(task, completed=done, total=total)

        yield show
