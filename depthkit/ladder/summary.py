"""What a ladder found: a row a rung, means over replicates, comparisons in words."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from depthkit.files import write_json, write_text
from depthkit.ladder.axes import short_name, steps
from depthkit.ladder.compare import Interval, Verdict, interval, paired
from depthkit.ladder.rung import Outcome
from depthkit.ladder.spec import LadderConfig, Rung
from depthkit.utilization import Report

Place = tuple[Any, ...]


@dataclass(frozen=True)
class Row:
    """One rung: where it stands, how it ended, and its report when it has one."""

    rung: Rung
    error: str | None
    report: Report | None

    @property
    def loss(self) -> float | None:
        """Held-out nats per token on the evaluated windows."""
        return None if self.report is None else self.report.content["baseline"]["loss_nats"]


@dataclass(frozen=True)
class Summary:
    """The rows of a ladder and everything computed from them."""

    ladder: LadderConfig
    rows: list[Row]

    @property
    def axes(self) -> list[str]:
        """All axes but the replicates."""
        return [axis for axis in self.ladder.axes if axis != self.ladder.replicate]

    def cells(self) -> dict[Place, list[Row]]:
        """Finished rows by place on the axes, replicates together, in the order of the axes."""
        found: dict[Place, list[Row]] = {}
        for row in self.rows:
            if row.report is not None:
                found.setdefault(self.place(row), []).append(row)
        return found

    def place(self, row: Row) -> Place:
        """Where a row stands on the axes, replicates aside."""
        return tuple(row.rung.place[axis] for axis in self.axes)

    def losses(self, rows: list[Row]) -> dict[Any, float]:
        """Loss by replicate."""
        return {row.rung.place[self.ladder.replicate]: row.loss for row in rows if row.loss is not None}

    def loss(self, rows: list[Row]) -> Interval:
        """Mean loss over replicates."""
        return interval(list(self.losses(rows).values()))

    def curve(self, rows: list[Row], metric: str) -> list[Interval | None]:
        """A per-visit metric averaged over replicates; None where it is undefined in one of them."""
        columns = zip(*(row.report.per_visit(metric) for row in rows if row.report), strict=True)
        return [None if None in column else interval([float(v) for v in column]) for column in columns]

    def verdicts(self) -> Iterator[Verdict]:
        """Every configured comparison at every place where both sides finished."""
        cells = self.cells()
        for comparison in self.ladder.compare:
            position = self.axes.index(comparison.axis)
            for place, rows in cells.items():
                value = place[position]
                other = (*place[:position], comparison.baseline, *place[position + 1 :])
                if value == comparison.baseline or other not in cells:
                    continue
                difference = paired(self.losses(cells[other]), self.losses(rows))
                if difference is not None:
                    where = {a: p for a, p in zip(self.axes, place, strict=True) if a != comparison.axis}
                    yield Verdict(comparison.axis, value, comparison.baseline, where, difference)

    def save(self, folder: Path) -> None:
        """Write summary.csv, summary.json, report.html and plots/*.png."""
        from depthkit.ladder.page import summary_page
        from depthkit.ladder.plots import save_plots

        write_text(folder / "summary.csv", self.csv())
        write_json(folder / "summary.json", self.content())
        save_plots(self, folder / "plots")
        write_text(folder / "report.html", summary_page(self))

    def content(self) -> dict[str, Any]:
        """The numbers behind the page."""
        cells = [
            {"place": dict(zip(self.axes, place, strict=True)), "loss_nats": vars(self.loss(rows))}
            for place, rows in self.cells().items()
        ]
        comparisons = [
            {
                "axis": v.axis,
                "value": v.value,
                "baseline": v.baseline,
                "where": v.where,
                "difference_nats": vars(v.difference),
                "verdict": v.word,
                "sentence": v.sentence(),
            }
            for v in self.verdicts()
        ]
        failed = {row.rung.name: row.error for row in self.rows if row.error}
        return {"cells": cells, "comparisons": comparisons, "failed": failed}

    def csv(self) -> str:
        """A line a rung."""
        text = io.StringIO()
        names = [short_name(axis) for axis in self.ladder.axes]
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["rung", *names, "status", "visits", "loss_nats"])
        for row in self.rows:
            status = "failed" if row.error else "finished"
            place, depth = row.rung.place.values(), row.rung.config.model.plan().depth
            writer.writerow([row.rung.name, *place, status, depth, "" if row.loss is None else row.loss])
        return text.getvalue()

    def show(self, console: Console) -> None:
        """One screen: mean losses with intervals, then the comparisons in words."""
        table = Table(title="held-out loss, nats per token (mean ± half of the 95 % interval)", box=None)
        table.title_justify = "left"
        columns = list(dict.fromkeys(place[1:] for place in self.cells()))
        table.add_column(short_name(self.axes[0]))
        for column in columns:
            pairs = zip(self.axes[1:], column, strict=True)
            table.add_column("\n".join(f"{short_name(a)} {v}" for a, v in pairs), justify="right")
        for step in steps(self.axes[0], self.ladder.axes[self.axes[0]]):
            cells = [self.cells().get((step.label, *column)) for column in columns]
            table.add_row(str(step.label), *("failed" if c is None else spread(self.loss(c)) for c in cells))
        console.print(table)
        for verdict in self.verdicts():
            console.print(f"  {verdict.sentence()}", markup=False)
        for row in self.rows:
            if row.error:
                console.print(f"  failed: {row.rung.name}: {row.error}", style="red", markup=False)


def spread(found: Interval) -> str:
    """`2.345 ± 0.012`, or the mean alone without replicates."""
    half = found.half_width
    return f"{found.mean:.3f}" if half is None else f"{found.mean:.3f} ± {half:.3f}"


def summarise(ladder: LadderConfig, rungs: list[Rung], outcomes: dict[str, Outcome], folder: Path) -> Summary:
    """Read the rungs' reports back."""
    rows = []
    for rung in rungs:
        error = outcomes[rung.name].error
        report = None if error else Report.load(folder / "rungs" / rung.name)
        rows.append(Row(rung, error, report))
    return Summary(ladder, rows)
