"""docs/performance.md from the JSON of the scripts.

    python -m benchmarks.bench.page docs/performance.md docs/results/*_bench_*.json

Raises:
    ValueError: a file that none of the scripts wrote, or one of quick mode.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench.report import Report, Table, goal_table, load
from depthkit.files import write_text

TEMPLATE = Path(__file__).with_name("performance.md")
"""What the page says around the figures, with `{missed}`, `{machine}` and `{scripts}` to be filled in."""


def main(target: Path, sources: list[Path]) -> None:
    """Write the page."""
    reports = [read(path) for path in sources]
    write_text(target, page(list(zip(sources, reports, strict=True))))


def read(path: Path) -> Report:
    """A stored report.

    Raises:
        ValueError: it is none, or of quick mode.
    """
    values = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict) or not {"script", "tables", "goals"} <= values.keys():
        raise ValueError(f"{path}: not the JSON of a benchmark")
    report = load(values)
    if report.quick:
        raise ValueError(f"{path}: measured with --quick, which says nothing about speed")
    return report


def page(found: list[tuple[Path, Report]]) -> str:
    """All of it."""
    reports = [report for _, report in found]
    text = TEMPLATE.read_text(encoding="utf-8")
    parts = {
        "missed": "\n".join(missed(reports)) or "Every goal that was measured is met.",
        "machine": "\n".join(dict.fromkeys(machine(report.machine) for report in reports)),
        "scripts": "\n".join(section(path, report) for path, report in found),
    }
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", part)
    return text


def missed(reports: list[Report]) -> Iterator[str]:
    """A line for every goal that was not reached or not measured."""
    for report in reports:
        for goal in report.goals:
            if not goal.met:
                value = "" if goal.value is None else f" {goal.value:.2f},"
                yield f"- {goal.name}:{value} {goal.at} {goal.bound:g} is the goal; {goal.verdict}"


def machine(facts: dict[str, Any]) -> str:
    """What a report was made on."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    allocator = ", ".join(f"{name}={value}" for name, value in facts["allocator"].items()) or "default"
    return (
        f"- {facts['date']}: {facts['processor']} ({facts['capability']}), {facts['threads']} thread of "
        f"{facts['cores']} cores, Python {facts['python']}; {versions}; allocator: {allocator}"
    )


def section(path: Path, report: Report) -> str:
    """One script: what it is, goals, tables, notes."""
    about = " ".join(report.about.split())
    lines = [f"## `{report.script}`\n", f"{about}\n", f"```\n{report.command}\n```\n"]
    lines += [markdown(goal_table(report.goals))] if report.goals else []
    lines += [markdown(table) for table in report.tables]
    lines += [f"- {note}" for note in report.notes]
    return "\n".join([*lines, f"\nStored in `{path.parent.name}/{path.name}`.\n"])


def markdown(table: Table) -> str:
    """A table under its title."""
    head = [" | ".join(table.columns), "|".join(["---", *["---:"] * (len(table.columns) - 1)])]
    rows = [" | ".join(row) for row in table.shown()]
    return f"### {table.title}\n\n" + "\n".join(f"| {row} |" for row in [*head, *rows]) + "\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
