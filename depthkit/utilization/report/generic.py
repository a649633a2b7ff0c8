"""A figure of every number by visit and every matrix that is not among the chosen ones.

It is made from the number's unit and meaning alone, so a new probe is shown without a line here.
"""

from __future__ import annotations

import re
from typing import Any

from depthkit.utilization.report.figures import Axis, Heat, Lines, Panel, file_name, panels
from depthkit.utilization.report.report import Report
from depthkit.utilization.report.scales import scale_of


def groups(report: Report) -> dict[str, list[Panel]]:
    """Figures by probe of everything that the chosen ones leave out, in the order of measuring."""
    chosen = panels(report)
    lines = {metric for panel in chosen if isinstance(panel, Lines) for metric in panel.metrics.values()}
    heats = {panel.matrix for panel in chosen if isinstance(panel, Heat) and panel.segment is None}
    found: dict[str, list[Panel]] = {}
    bases: dict[tuple[str, str], list[str]] = {}
    for metric in report.metrics:
        meaning = report.content["metrics"][metric]
        if metric not in lines and _defined(report, metric):
            bases.setdefault((meaning["probe"], metric.rpartition(".")[0]), []).append(metric)
    for (probe, base), metrics in bases.items():
        found.setdefault(probe, []).append(_lines(report, base, metrics))
    for matrix, meaning in report.content["matrices"].items():
        if matrix not in heats:
            found.setdefault(meaning["probe"], []).append(_heat(matrix, meaning))
    return found


def _defined(report: Report, metric: str) -> bool:
    return any(value is not None for value in report.per_visit(metric))


def _lines(report: Report, base: str, metrics: list[str]) -> Lines:
    unit = report.content["metrics"][metrics[0]]["unit"]
    labels = {metric.removeprefix(f"{base}.").replace("_", " "): metric for metric in metrics}
    file = base if len(metrics) > 1 else metrics[0]
    return Lines(file_name(file), base.replace("_", " "), unit, labels, scale_of(base, unit))


def _heat(matrix: str, meaning: dict[str, Any]) -> Heat:
    name, _, aggregation = matrix.partition(".")
    title = f"{name.replace('_', ' ')}: {aggregation.replace('_', ' ')}"
    axes = axis(meaning["columns"]), axis(meaning["rows"])
    return Heat(file_name(matrix), title, matrix, *axes, scale_of(matrix, meaning["unit"]))


def axis(words: str) -> Axis:
    """From a matrix's own words: `parameter: 0 q, 1 k` names the entries, `n - 1` counts from 1."""
    if words == "n - 1":
        return Axis("visits n", 1)
    title, _, entries = words.partition(": ")
    named = re.findall(r"(\d+) ([^,]+)", entries)
    if named and [int(number) for number, _ in named] == list(range(entries.count(",") + 1)):
        return Axis(title, 0, tuple(name for _, name in named))
    if re.fullmatch(r"[\d., ]+", entries):
        return Axis(title, 0, tuple(entries.split(", ")))
    return Axis(title)
