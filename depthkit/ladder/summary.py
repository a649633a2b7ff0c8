"""What a ladder found: a row a rung, means over replicates, comparisons and rankings in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from depthkit.files import write_json, write_text
from depthkit.ladder.axes import RATE, short_name
from depthkit.ladder.claim import gone
from depthkit.ladder.compare import CORRECTION, Interval, Verdict, correct, differences, interval, p_value
from depthkit.ladder.ranking import Ranking, rankings
from depthkit.ladder.reach import Reach, reaches
from depthkit.ladder.results import Results, Row, read
from depthkit.ladder.spec import LadderConfig, Rung
from depthkit.ladder.state import FINISHED
from depthkit.ladder.table import rows_csv

SHOWN = 12
"""Sentences of a kind that a terminal shows, and that a page shows unfolded."""


@dataclass(frozen=True)
class Summary:
    """The results of a ladder and everything computed from them."""

    results: Results
    gone: Sequence[str] = ()
    """Rungs in the folder that the ladder no longer has."""

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """Every configured comparison at every place where both sides finished."""
        return correct([v for pair in self.results.pairs() if (v := self._verdict(*pair)) is not None])

    def _verdict(self, axis: str, place: tuple[Any, ...], other: tuple[Any, ...]) -> Verdict | None:
        results = self.results
        found = differences(results.losses(results.cells[other]), results.losses(results.cells[place]))
        if not found:
            return None
        values = results.at(place, axis), results.at(other, axis)
        return Verdict(axis, *values, results.elsewhere(place, axis), interval(found), p_value(found))

    @cached_property
    def rankings(self) -> list[Ranking]:
        """Who is best at each place, with ties."""
        return rankings(self.results)

    @cached_property
    def reaches(self) -> list[Reach]:
        """Compute to reach the baseline's loss."""
        return reaches(self.results)

    @property
    def unfinished(self) -> list[Row]:
        """Rungs without a result."""
        return [row for row in self.results.rows if row.state.state != FINISHED]

    def sentences(self) -> dict[str, list[str]]:
        """What was found, in words, by heading."""
        found = {
            "Ranking": [ranking.sentence() for ranking in self.rankings],
            "Comparisons": [verdict.sentence() for verdict in self.verdicts],
            "Compute to reach the baseline's loss": [reach.sentence() for reach in self.reaches],
            "Best learning rates": self._rates(),
        }
        return {heading: lines for heading, lines in found.items() if lines}

    def _rates(self) -> list[str]:
        if not self.results.swept:
            return []
        lines = []
        for place, rates in self.results.by_rate.items():
            where = zip(self.results.axes, place, strict=True)
            best, ends = self.results.best_rate(rates), (min(rates), max(rates))
            edge = ", at the end of the range: it may lie beyond" if best in ends else ""
            lines.append(f"{', '.join(f'{short_name(a)} {p}' for a, p in where)}: {best:g}{edge}")
        return lines

    def save(self, folder: Path) -> None:
        """Write summary.csv, .json, .md and .html, plots/*.png and hparams/ for TensorBoard."""
        from depthkit.ladder.hparams import save_hparams
        from depthkit.ladder.markdown import summary_markdown
        from depthkit.ladder.page import summary_page
        from depthkit.ladder.plots import save_plots

        write_text(folder / "summary.csv", rows_csv(self.results))
        write_json(folder / "summary.json", self.content())
        write_text(folder / "summary.md", summary_markdown(self))
        save_plots(self, folder / "plots")
        save_hparams(self.results, folder / "hparams")
        write_text(folder / "summary.html", summary_page(self))

    def content(self) -> dict[str, Any]:
        """The numbers behind the page."""
        results = self.results
        return {
            "cells": [self._cell(place, rows) for place, rows in results.cells.items()],
            "comparisons": [
                {
                    "axis": v.axis,
                    "value": v.value,
                    "baseline": v.baseline,
                    "where": v.where,
                    "difference_nats": vars(v.difference),
                    "p": v.p,
                    "p_corrected": v.q,
                    "verdict": v.word,
                    "sentence": v.sentence(),
                }
                for v in self.verdicts
            ],
            "correction": f"{CORRECTION}, over {len(self.verdicts)} comparisons",
            "rankings": [asdict(ranking) | {"sentence": ranking.sentence()} for ranking in self.rankings],
            "compute_to_reach": [asdict(reach) | {"sentence": reach.sentence()} for reach in self.reaches],
            "unfinished": {row.rung.name: why(row) for row in self.unfinished},
            "gone": list(self.gone),
        }

    def _cell(self, place: tuple[Any, ...], rows: list[Row]) -> dict[str, Any]:
        rate = {RATE: rows[0].rung.config.train.lr} if self.results.swept else {}
        where = dict(zip(self.results.axes, place, strict=True))
        return {"place": where, **rate, "loss_nats": vars(self.results.loss(rows))}

    def show(self, console: Console) -> None:
        """One screen: mean losses with intervals, then what was found in words."""
        console.print("held-out loss, nats per token (mean ± half of the 95 % interval)", style="italic")
        console.print(self._table())
        for heading, lines in self.sentences().items():
            console.print(f"{heading}", style="bold")
            for line in lines[:SHOWN]:
                console.print(f"  {line}", markup=False)
            if len(lines) > SHOWN:
                console.print(f"  {len(lines) - SHOWN} more in summary.html")
        for row in self.unfinished:
            console.print(f"  {row.rung.name}: {why(row)}", style="red", markup=False)

    def _table(self) -> Table:
        """A row for each value of the first axis, a column for each place on the others."""
        results, cells = self.results, self.results.cells
        table = Table(box=None)
        columns = list(dict.fromkeys(place[1:] for place in cells))
        table.add_column(short_name(results.axes[0]) if results.axes else "")
        for column in columns:
            pairs = zip(results.axes[1:], column, strict=True)
            table.add_column("\n".join(f"{short_name(a)} {v}" for a, v in pairs), justify="right")
        for first in dict.fromkeys(place[:1] for place in cells):
            found = [cells.get((*first, *column)) for column in columns]
            losses = ["" if rows is None else spread(results.loss(rows)) for rows in found]
            table.add_row(Text(str(first[0]) if first else ""), *losses)
        return table


def why(row: Row) -> str:
    """`diverged at visit 3 (...)`, `failed: out of memory`, `waiting`."""
    state = row.state
    if state.where:
        return f"{state.state} at {state.where}"
    return f"{state.state}: {state.error}" if state.error else state.state


def spread(found: Interval) -> str:
    """`2.345 ± 0.012`, or the mean alone without replicates."""
    half = found.half_width
    return f"{found.mean:.3f}" if half is None else f"{found.mean:.3f} ± {half:.3f}"


def summarise(ladder: LadderConfig, rungs: Sequence[Rung], folder: Path) -> Summary:
    """Read everything the rungs left in a ladder's folder."""
    return Summary(read(ladder, rungs, folder), gone(rungs, folder))
