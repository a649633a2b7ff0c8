"""The PNG plots of a ladder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from depthkit.ladder.figures import Panel, Series, bands
from depthkit.ladder.panels import panels
from depthkit.ladder.summary import Summary
from depthkit.utilization.report.plots import save_png


def save_plots(summary: Summary, folder: Path) -> list[Path]:
    """One PNG a picture."""
    return [save_png(draw(panel), folder / f"{panel.file}.png") for panel in panels(summary)]


def draw(panel: Panel) -> Figure:
    """The facets side by side, with shared axes and one legend."""
    count, (rows, columns) = len(panel.facets), panel.shape()
    figure = Figure(figsize=(1.6 + 3.9 * columns, 0.9 + 3.0 * rows), dpi=130, layout="constrained")
    grid = figure.subplots(rows, columns, sharey=True, sharex=True, squeeze=False)
    figure.suptitle(panel.title, fontsize=11)
    colours = panel.colours()
    for axes, (label, lines) in zip(grid.flat, panel.facets.items(), strict=False):
        _draw_facet(axes, panel, label, lines, colours)
    for index, axes in enumerate(grid.flat):
        axes.set_visible(index < count)
        axes.tick_params(labelbottom=index + columns >= count)
    figure.supxlabel(panel.x, fontsize=9)
    figure.supylabel(panel.y, fontsize=9)
    _legend(figure, grid[0][0], colours)
    return figure


def _legend(figure: Figure, axes: Axes, colours: Mapping[str, str]) -> None:
    if set(colours) != {""}:
        handles = [axes.plot([], [], color=colour, label=name)[0] for name, colour in colours.items()]
        figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=8)


def _draw_facet(
    axes: Axes, panel: Panel, label: str, lines: list[Series], colours: Mapping[str, str]
) -> None:
    for line in lines:
        mean, low, high = (np.array(v) for v in bands(line.points, panel.floor))
        colour = colours[line.name]
        if panel.few:
            error = np.abs(np.array([mean - low, high - mean]))
            axes.errorbar(
                line.x, mean, error, color=colour, marker="o", markersize=4, capsize=3, linewidth=1.3
            )
            continue
        axes.plot(line.x, mean, color=colour, linewidth=1.3)
        axes.fill_between(line.x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_title(label, fontsize=9)
    axes.set_yscale("linear" if panel.floor is None else "log")
    if (limits := panel.limits()) is not None:
        axes.set_ylim(*limits)
    axes.set_xscale("log" if panel.x_log else "linear")
    if (ticks := panel.ticks()) is not None:
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
