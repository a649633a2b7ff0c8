"""What a benchmark found: tables, goals, notes; printed, and stored as JSON."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.bench import machine
from benchmarks.bench.timing import Spread
from depthkit.files import write_json

Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Rows of cells; a float is shown with the digits of its column, None as a dash."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]
    digits: int = 2

    def shown(self) -> list[list[str]]:
        """The cells as text."""
        return [[self._text(cell) for cell in row] for row in self.rows]

    def _text(self, cell: Cell) -> str:
        if cell is None:
            return "-"
        return f"{cell:.{self.digits}f}" if isinstance(cell, float) else str(cell)


@dataclass(frozen=True)
class Goal:
    """A figure and what it should be; `value` None means that it was not measured."""

    name: str
    at: Literal["at least", "at most"]
    bound: float
    value: float | None

    @property
    def met(self) -> bool | None:
        """Whether it is reached."""
        if self.value is None:
            return None
        return self.value >= self.bound if self.at == "at least" else self.value <= self.bound

    @property
    def verdict(self) -> str:
        """In words."""
        return {True: "met", False: "not met", None: "not measured"}[self.met]


@dataclass
class Report:
    """All that one script found."""

    script: str
    about: str
    command: str
    quick: bool = False
    tables: list[Table] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    measurements: list[dict[str, Any]] = field(default_factory=list)
    """Whatever the tables were made of."""
    machine: dict[str, Any] = field(default_factory=machine.facts)

    def show(self, console: Console | None = None) -> None:
        """Print tables, goals and notes."""
        console = console or Console(highlight=False, width=None if sys.stdout.isatty() else 130)
        for table in self.tables:
            console.print(rich_table(table))
        if self.goals:
            console.print(rich_table(goal_table(self.goals)))
        for note in self.notes:
            console.print(f"note: {note}", markup=False)

    def save(self, path: Path) -> None:
        """Write JSON."""
        write_json(path, asdict(self))


def goal_table(goals: list[Goal]) -> Table:
    """Goals as a table."""
    rows: list[list[Cell]] = [[g.name, f"{g.at} {g.bound:g}", g.value, g.verdict] for g in goals]
    return Table("Goals", ["goal", "", "measured", ""], rows)


def rich_table(table: Table) -> RichTable:
    """For the terminal: the first column left, the others right."""
    rich = RichTable(title=table.title, title_justify="left", box=None)
    for number, column in enumerate(table.columns):
        rich.add_column(column, justify="right" if number else "left")
    for row in table.shown():
        rich.add_row(*row)
    return rich


def ranged(spread: Spread, digits: int = 2) -> str:
    """A median with its quartiles."""
    low, median, high = (f"{value:.{digits}f}" for value in spread)
    return f"{median} ({low}-{high})"


def load(values: dict[str, Any]) -> Report:
    """A report from its JSON."""
    tables = [Table(**table) for table in values["tables"]]
    goals = [Goal(**goal) for goal in values["goals"]]
    return Report(**{**values, "tables": tables, "goals": goals})
