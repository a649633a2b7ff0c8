"""The PNG plots of a ladder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthkit.ladder.figures import Panel, Series, bands, panels
from depthkit.ladder.summary import Summary
from depthkit.utilization.report.plots import COLOURS, save_png


def save_plots(summary: Summary, folder: Path) -> list[Path]:
    """One PNG a picture."""
    return [save_png(draw(panel), folder / f"{panel.file}.png") for panel in panels(summary)]


def draw(panel: Panel) -> Figure:
    """The facets side by side, with shared axes and one legend."""
    count = len(panel.facets)
    figure = Figure(figsize=(1.2 + 4.2 * count, 3.9), dpi=130, layout="constrained")
    grid = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    figure.suptitle(panel.title, fontsize=11)
    for axes, (label, lines) in zip(grid, panel.facets.items(), strict=True):
        _draw_facet(axes, panel, label, lines)
    grid[0].set_ylabel(panel.y)
    grid[-1].legend(frameon=False, fontsize=9)
    return figure


def _draw_facet(axes: Axes, panel: Panel, label: str, lines: list[Series]) -> None:
    few = all(len(line.x) <= 6 for line in lines)
    for index, line in enumerate(lines):
        mean, low, high = (np.array(v) for v in bands(line.points, panel.floor))
        colour = COLOURS[index % 10]
        if few:
            error = np.abs(np.array([mean - low, high - mean]))
            axes.errorbar(line.x, mean, error, color=colour, marker="o", capsize=3, label=line.name)
            continue
        axes.plot(line.x, mean, color=colour, linewidth=1.4, label=line.name)
        axes.fill_between(line.x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_title(label, fontsize=10)
    axes.set_xlabel(panel.x)
    axes.set_yscale("linear" if panel.floor is None else "log")
    if few:
        axes.set_xticks(sorted({x for line in lines for x in line.x}))
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
