"""What the terminal shows of tasks."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from depthkit.utilization.report.figures import short


def print_tasks(console: Console, content: dict[str, Any] | None) -> None:
    """A row a task, and a line for each that could not be asked; nothing where none was asked."""
    if content is None:
        return
    console.print(_table(content))
    for name, reason in content["unavailable"].items():
        console.print(f"  Not asked: {name}: {reason}", style="yellow", highlight=False, markup=False)
    bos = "no bos" if content["bos"] is None else f"bos {content['bos']}"
    words = f"lm-eval {content['lm_eval']}, adapter {content['adapter']}, {bos}."
    console.print(f"  [dim]{words}[/]", highlight=False)


def _table(content: dict[str, Any]) -> Table:
    skipped = ", ".join(map(str, content["skip"]))
    headings = [f"without {skipped}", "difference (95 %)"] if skipped else []
    table = Table(title="tasks", box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0))
    for heading in ("task", "metric", "value ± error", "n", "chance", "version", *headings):
        table.add_column(heading, no_wrap=heading in ("task", "value ± error"))
    for name, found in content["results"].items():
        table.add_row(name, *_cells(found), *(_beside(found["skipped"]) if skipped else []))
    return table


def _cells(found: dict[str, Any]) -> list[str]:
    """The accuracy, or the first metric of a task that has none."""
    metrics: dict[str, Any] = found["metrics"]
    metric = found["metric"] or next(iter(metrics), "")
    shown = metrics.get(metric, {"value": None, "stderr": None})
    error = "" if shown["stderr"] is None else f" ± {short(shown['stderr'], 2)}"
    facts = [short(found[name]) for name in ("n", "chance", "version")]
    return [metric, short(shown["value"], 3) + error, *facts]


def _beside(found: dict[str, Any]) -> list[str]:
    change = found["difference"]
    if change is None:
        return [short(found["accuracy"], 3), "-"]
    interval = "" if change["low"] is None else f" ({change['low']:+.2f} to {change['high']:+.2f})"
    return [short(found["accuracy"], 3), f"{change['value']:+.3f}{interval}"]
