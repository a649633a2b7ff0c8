"""PNG plots, drawn on figure objects, so nothing global is touched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from depthkit.files import replacing
from depthkit.utilization.report.figures import RELATIVE, Heat, Lines, overlaid, panels
from depthkit.utilization.report.report import Report

SIZE = (6.4, 3.8)
COLOURS = matplotlib.color_sequences["tab10"]


def save_plots(reports: Sequence[Report], folder: Path) -> list[Path]:
    """One PNG a figure. Several reports are overlaid on relative depth, without their matrices."""
    drawn = []
    for panel in panels(*reports):
        figure = draw_lines(panel, reports) if isinstance(panel, Lines) else draw_heat(panel, reports[0])
        drawn.append(save_png(figure, folder / f"{panel.file}.png"))
    return drawn


def save_png(figure: Figure, path: Path) -> Path:
    """Write a figure atomically."""
    with replacing(path) as temporary:
        FigureCanvasAgg(figure).print_png(str(temporary))
    return path


def new_axes(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    """An empty figure in the house style."""
    figure = Figure(figsize=SIZE, dpi=130)
    # Fixed margins: measuring the labels to place them costs as much as drawing.
    figure.subplots_adjust(left=0.13, right=0.97, bottom=0.14, top=0.91)
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_lines(panel: Lines, reports: Sequence[Report]) -> Figure:
    """Numbers by visit, or by relative depth when there are several reports."""
    single = len(reports) == 1
    panel = panel if single else overlaid(panel)
    figure, axes = new_axes(panel.title, reports[0].visit_noun if single else RELATIVE, panel.y)
    for index, (report, label, metric) in enumerate(
        (r, k, m) for r in reports for k, m in panel.metrics.items()
    ):
        x = np.arange(report.depth) if single else np.array(report.relative_depth())
        style = {"color": COLOURS[index % 10], "label": label if single else report.name}
        (_draw_bars if panel.bars else _draw_line)(axes, x, report, metric, style)
    _scale(axes, panel, single)
    return figure


def _scale(axes: Axes, panel: Lines, single: bool) -> None:
    axes.grid(axis="y", alpha=0.25)
    if panel.scale != "linear":
        axes.set_yscale(panel.scale, **({"linthresh": 0.01} if panel.scale == "symlog" else {}))
    if panel.limits:
        axes.set_ylim(*panel.limits)
    if panel.bars or panel.file == "direction":
        axes.axhline(0.0, color="black", linewidth=0.8)
    if single:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend(frameon=False, fontsize=9)


def _numbers(values: Any) -> Any:
    return np.array([np.nan if v is None else v for v in values], dtype=float)


def _draw_line(axes: Axes, x: Any, report: Report, metric: str, style: dict[str, Any]) -> None:
    marker = "o" if report.depth <= 40 else ""
    axes.plot(x, _numbers(report.per_visit(metric)), marker=marker, markersize=3, linewidth=1.4, **style)
    ends = report.interval(metric)
    if ends:
        axes.fill_between(
            x, _numbers(ends[0]), _numbers(ends[1]), color=style["color"], alpha=0.15, linewidth=0
        )


def _draw_bars(axes: Axes, x: Any, report: Report, metric: str, style: dict[str, Any]) -> None:
    values, ends = _numbers(report.per_visit(metric)), report.interval(metric)
    axes.bar(x, values, width=0.8, alpha=0.85, **style)
    if ends:
        low, high = _numbers(ends[0]), _numbers(ends[1])
        axes.vlines(x, low, high, color="black", linewidth=1.0)


def draw_heat(panel: Heat, report: Report) -> Figure:
    """A matrix on fixed colours; undefined entries are blank."""
    figure, axes = new_axes(panel.title, panel.x, panel.y)
    values = np.ma.masked_invalid(report.arrays[panel.matrix])
    # Columns of the angular matrix are block sizes, which start at 1.
    first = 0.5 if panel.file == "angular" else -0.5
    rows, columns = values.shape
    extent = (first, first + columns, rows - 0.5, -0.5)
    low, high = panel.limits
    image = axes.imshow(
        values, cmap="viridis", vmin=low, vmax=high, extent=extent, aspect="auto", interpolation="none"
    )
    figure.colorbar(image, ax=axes, label=report.content["matrices"][panel.matrix]["unit"], extend="max")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    return figure
