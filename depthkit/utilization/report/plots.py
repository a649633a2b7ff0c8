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

from depthkit.files import replacing
from depthkit.utilization.report.figures import Heat, Lines, panels
from depthkit.utilization.report.report import Report

SIZE = (6.4, 3.8)
COLOURS = matplotlib.color_sequences["tab10"]


def save_plots(reports: Sequence[Report], folder: Path) -> list[Path]:
    """One PNG a figure. Several reports are overlaid on relative depth, without their matrices."""
    drawn = []
    for panel in panels(reports[0]):
        if isinstance(panel, Lines):
            figure = draw_lines(panel, reports)
        elif len(reports) == 1:
            figure = draw_heat(panel, reports[0])
        else:
            continue
        drawn.append(save_png(figure, folder / f"{panel.file}.png"))
    return drawn


def save_png(figure: Figure, path: Path) -> Path:
    """Write a figure atomically."""
    with replacing(path) as temporary:
        FigureCanvasAgg(figure).print_png(str(temporary))
    return path


def new_axes(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    """An empty figure in the house style."""
    figure = Figure(figsize=SIZE, dpi=130, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_lines(panel: Lines, reports: Sequence[Report]) -> Figure:
    """Numbers by visit, or by relative depth when there are several reports."""
    single = len(reports) == 1
    noun = reports[0].visit_noun if single else "relative depth, visit / (depth - 1)"
    figure, axes = new_axes(panel.title, noun, panel.y)
    shown = panel.metrics if single else dict(list(panel.metrics.items())[:1])
    for index, (report, label, metric) in enumerate((r, k, m) for r in reports for k, m in shown.items()):
        x = np.arange(report.depth) if single else np.array(report.relative_depth())
        draw = _draw_bars if panel.bars and single else _draw_line
        draw(axes, x, report, metric, {"color": COLOURS[index % 10], "label": label if single else report.name})
    _scale(axes, panel, reports[0], single)
    return figure


def _scale(axes: Axes, panel: Lines, report: Report, single: bool) -> None:
    axes.grid(axis="y", alpha=0.25)
    if panel.log:
        axes.set_yscale("log")
    elif panel.bars or panel.file == "direction":
        axes.axhline(0.0, color="black", linewidth=0.8)
    if single:
        axes.xaxis.get_major_locator().set_params(integer=True)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend(frameon=False, fontsize=9)


def _numbers(values: Any) -> Any:
    return np.array([np.nan if v is None else v for v in values], dtype=float)


def _draw_line(axes: Axes, x: Any, report: Report, metric: str, style: dict[str, Any]) -> None:
    marker = "o" if report.depth <= 40 else ""
    axes.plot(x, _numbers(report.per_visit(metric)), marker=marker, markersize=3, linewidth=1.4, **style)
    ends = report.interval(metric)
    if ends:
        axes.fill_between(x, _numbers(ends[0]), _numbers(ends[1]), color=style["color"], alpha=0.15, linewidth=0)


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
    image = axes.imshow(values, cmap="viridis", vmin=low, vmax=high, extent=extent, aspect="auto", interpolation="none")
    figure.colorbar(image, ax=axes, label=report.content["matrices"][panel.matrix]["unit"], extend="max")
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
    return figure
