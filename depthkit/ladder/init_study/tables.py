"""What a study found, as rows: on the terminal, in Markdown, as CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from depthkit.ladder.compare import Interval
from depthkit.ladder.init_study.findings import Cell, Findings
from depthkit.ladder.init_study.metrics import METRICS

COLUMNS = {
    "var 1": "variance_first",
    "var L": "variance_last",
    "power": "power_exponent",
    "R2": "power_r2",
    "exp R2": "exponential_r2",
    "|J-I| L/2": "jacobian_middle",
    "|J-I| L": "jacobian_last",
    "angle L": "angle_last",
    "grad 1/L": "gradient_ratio",
}
"""Heading -> metric of the table that is shown."""


def show(findings: Findings, console: Console) -> None:
    """One screen: a row a method at each depth that not more than this many methods share, then sentences."""
    for depth in (d for d in findings.depths if d >= findings.depth):
        console.print(_table(findings, depth))
    for sentence in findings.sentences():
        console.print(f"  {sentence}", markup=False)
    for what, reasons in (("failed", findings.failed), ("not included", findings.refused)):
        for name, reason in reasons.items():
            console.print(f"  {what}: {name}: {reason}", style="red", markup=False)
    for name, note in findings.notes.items():
        console.print(f"  {name}: {note}", markup=False)


def _table(findings: Findings, depth: int) -> Table:
    table = Table(
        title=f"depth {depth}, means over seeds", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    table.title_justify = "left"
    table.add_column("method", no_wrap=True)
    for heading in COLUMNS:
        table.add_column(heading, justify="right")
    for cell in findings.at(depth):
        table.add_row(cell.method, *_cells(cell))
    return table


def _cells(cell: Cell) -> Iterator[str]:
    return (short(cell.mean(metric)) for metric in COLUMNS.values())


def short(found: Interval | None) -> str:
    """Three significant digits; a dash for what is undefined."""
    return "-" if found is None else f"{found.mean:.3g}"


def markdown(findings: Findings, depth: int) -> str:
    """The table of one depth in Markdown."""
    lines = ["| " + " | ".join(["method", *(heading.replace("|", "\\|") for heading in COLUMNS)]) + " |"]
    lines.append("|---|" + "---:|" * len(COLUMNS))
    lines += ["| " + " | ".join([cell.method, *_cells(cell)]) + " |" for cell in findings.at(depth)]
    return "\n".join(lines)


def metrics_csv(findings: Findings) -> str:
    """A line for every method, depth and metric: mean, interval, seeds."""
    rows = []
    for cell in findings.cells:
        for metric in METRICS:
            found = cell.mean(metric)
            ends = ("", "", "") if found is None else (found.mean, found.low, found.high)
            rows.append((cell.method, cell.depth, metric, *ends, len(cell.seeds)))
    return _csv(("method", "depth", "metric", "mean", "low", "high", "seeds"), rows)


def curves_csv(findings: Findings) -> str:
    """A line for every method, depth and block: the mean curves."""
    rows = []
    for cell in findings.cells:
        names = list(cell.curves)
        for block, values in enumerate(zip(*cell.curves.values(), strict=True), start=1):
            rows.append((cell.method, cell.depth, block, *("" if v is None else v for v in values)))
    return _csv(("method", "depth", "block", *names), rows) if rows else ""


def _csv(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    return text.getvalue()


def content(findings: Findings) -> dict[str, Any]:
    """Every number, definition and sentence, as JSON data."""
    return {
        "definitions": METRICS,
        "cells": [
            {"method": c.method, "depth": c.depth, "law": c.law, "seeds": c.seeds, "curves": c.curves}
            for c in findings.cells
        ],
        "claims": [
            {
                **a.claim.model_dump(),
                "depth": a.depth,
                "verdict": a.word,
                "difference": vars(a.difference),
                "sentence": a.sentence(),
            }
            for a in findings.answers()
        ],
        "sentences": list(findings.sentences()),
        "failed": findings.failed,
        "refused": findings.refused,
        "notes": findings.notes,
        "cpu_seconds": findings.seconds,
    }
