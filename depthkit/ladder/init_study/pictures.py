"""A study's pictures: one quantity by block for every method, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthkit.ladder.init_study.findings import Cell, Findings
from depthkit.ladder.init_study.metrics import CURVES
from depthkit.utilization.report.plots import COLOURS, save_png

DASHES = ("-", "--", ":", "-.")
PANEL, LEGEND = 4.4, 1.8
"""Widths in inches, of a panel and of a column of the legend."""

ROWS = 24
"""Methods in a column of the legend."""

ON_PAGE = ("variance", "angle", "jacobian")


def save_pictures(findings: Findings, folder: Path) -> list[Path]:
    """A PNG for every quantity and depth."""
    return [
        save_png(draw(findings.at(depth), [name], depth), folder / f"{name}_{depth}.png")
        for depth in findings.depths
        for name in CURVES
    ]


def save_page_picture(findings: Findings, path: Path) -> Path:
    """Variance, angle and |J - I| side by side at the largest depth that all methods share."""
    return save_png(draw(findings.at(findings.depth), ON_PAGE, findings.depth, dpi=80), path)


def draw(cells: Sequence[Cell], names: Sequence[str], depth: int, dpi: int = 120) -> Figure:
    """One panel a quantity; the methods share colours, dashes and a legend."""
    columns = 1 + (len(cells) - 1) // ROWS
    legend = LEGEND * columns
    width = PANEL * len(names) + legend
    figure = Figure(figsize=(width, 4.6), dpi=dpi)
    grid = figure.subplots(1, len(names), squeeze=False)[0]
    # Fixed margins: measuring the labels to place them costs more than drawing.
    right = 1 - legend / width
    figure.subplots_adjust(left=0.75 / width, right=right, bottom=0.12, top=0.92, wspace=0.3)
    for axes, name in zip(grid, names, strict=True):
        _draw_panel(axes, cells, name)
    figure.suptitle(f"{depth} blocks at initialisation", fontsize=11)
    lines, labels = grid[0].get_legend_handles_labels()
    figure.legend(
        lines,
        labels,
        loc="upper left",
        bbox_to_anchor=(right + 0.1 / width, 0.94),
        ncols=columns,
        frameon=False,
        fontsize=7,
    )
    return figure


def _draw_panel(axes: Axes, cells: Sequence[Cell], name: str) -> None:
    for index, cell in enumerate(cells):
        values = np.array([np.nan if v is None else v for v in cell.curves[name]], dtype=float)
        known = np.flatnonzero(values > 0)
        style = DASHES[index // 10 % len(DASHES)]
        marker = "." if name == "jacobian" else ""
        axes.plot(
            known + 1,
            values[known],
            style,
            color=COLOURS[index % 10],
            label=cell.method,
            linewidth=1.3,
            marker=marker,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("block l")
    axes.set_ylabel(CURVES[name])
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
