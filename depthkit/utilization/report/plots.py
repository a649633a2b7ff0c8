"""PNG plots, drawn on figure objects, so nothing global is touched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm, Normalize, SymLogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from depthkit.files import replacing
from depthkit.utilization.report.figures import (
    RELATIVE,
    Heat,
    Lines,
    Panel,
    drawn_values,
    meaning_of,
    panels,
    values_of,
)
from depthkit.utilization.report.generic import groups
from depthkit.utilization.report.marks import Marks, marks
from depthkit.utilization.report.report import Report
from depthkit.utilization.report.scales import LINEAR_BELOW, Scale, colour_limits

SIZE = (6.4, 3.8)
COLOURS = matplotlib.color_sequences["tab10"]
LEGEND_COLUMNS = 5
MOST_BARS = 64
"""Visits from which on there are lines instead of bars."""
GREY = "#8b949e"
KIND_COLOURS = matplotlib.color_sequences["Set2"]


def save_plots(report: Report, folder: Path) -> list[Path]:
    """One PNG a figure: the chosen ones, then those of every other number and matrix."""
    others = [panel for group in groups(report).values() for panel in group]
    return [
        save_png(draw(panel, report), folder / f"{panel.file}.png") for panel in [*panels(report), *others]
    ]


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


def draw(panel: Panel, report: Report) -> Figure:
    """One figure of one report."""
    return draw_lines(panel, report) if isinstance(panel, Lines) else draw_heat(panel, report)


def draw_lines(panel: Lines, report: Report) -> Figure:
    """Numbers by visit, with the first null model in grey."""
    figure, axes = new_axes(panel.title, report.visit_noun, panel.y)
    x = np.arange(report.depth)
    _draw_null(axes, x, report, next(iter(panel.metrics.values())))
    for index, (label, metric) in enumerate(panel.metrics.items()):
        style = {"color": COLOURS[index % 10], "label": label}
        (_draw_bars if panel.bars and index == 0 and report.depth <= MOST_BARS else _draw_line)(
            axes, x, report, metric, style
        )
    _scale(axes, panel, [report])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _mark(axes, marks(report))
    _legend(figure, axes)
    return figure


def draw_overlay(panel: Lines, reports: Sequence[Report]) -> Figure:
    """The first metric of several reports, on relative depth."""
    figure, axes = new_axes(panel.title, RELATIVE, panel.y)
    (metric,) = panel.metrics.values()
    for index, report in enumerate(reports):
        style = {"color": COLOURS[index % 10], "label": report.name}
        _draw_line(axes, np.array(report.relative_depth()), report, metric, style)
    _scale(axes, panel, reports)
    _legend(figure, axes)
    return figure


def _scale(axes: Axes, panel: Lines, reports: Sequence[Report]) -> None:
    scale = panel.scale.holding(v for report in reports for v in drawn_values(panel, report))
    assert scale.limits is not None
    axes.grid(axis="y", alpha=0.25)
    if scale.kind != "linear":
        axes.set_yscale(scale.kind, **({"linthresh": LINEAR_BELOW} if scale.kind == "symlog" else {}))
    low, high = scale.limits
    room = 0.03 * (high - low) if scale.kind == "linear" else 0.0
    axes.set_ylim(low - room * (low < 0 or scale.limits == (0.0, 1.0)), high + room)
    if scale.signed:
        axes.axhline(0.0, color="black", linewidth=0.8)
    for guide in panel.guides:
        axes.axhline(guide, color=GREY, linewidth=0.7, linestyle=":")


def _legend(figure: Figure, axes: Axes) -> None:
    """Under the axes, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) < 2:
        return
    figure.subplots_adjust(bottom=0.21 + 0.05 * ((len(handles) - 1) // LEGEND_COLUMNS))
    figure.legend(handles, labels, loc="lower center", ncols=LEGEND_COLUMNS, frameon=False, fontsize=7)


def _mark(axes: Axes, found: Marks) -> None:
    """Lines where loops and segments begin, names of segments, and a strip of the layers' kinds."""
    at = axes.get_xaxis_transform()
    axes.vlines(found.boundaries, 0, 1, GREY, ":", transform=at, linewidth=0.5, zorder=0)
    for stretch in found.segments:
        middle = (stretch.first + stretch.last) / 2
        axes.text(middle, 0.985, stretch.label, transform=at, ha="center", va="top", fontsize=7, color=GREY)
    if len(found.kinds) < 2:
        return
    for code, kind in enumerate(found.kinds):
        spans = [(visit - 0.5, 1.0) for visit, which in enumerate(found.codes) if which == code]
        colour = KIND_COLOURS[code % len(KIND_COLOURS)]
        axes.broken_barh(spans, (0.0, 0.018), transform=at, facecolors=colour, label=kind, zorder=3)


def _numbers(values: Any) -> Any:
    return np.array([np.nan if v is None else v for v in values], dtype=float)


def _draw_null(axes: Axes, x: Any, report: Report, metric: str) -> None:
    for name, null in report.nulls.items():
        found = null["per_visit"].get(metric)
        if found is None:
            continue
        label = f"null: {name.replace('_', ' ')}"
        y = _numbers(found["values"])
        known = ~np.isnan(y)
        axes.plot(x[known], y[known], color=GREY, linewidth=1.0, linestyle="--", label=label)
        if found["low"]:
            ends = _numbers(found["low"]), _numbers(found["high"])
            axes.fill_between(x, *ends, color=GREY, alpha=0.2, linewidth=0)


def _draw_line(axes: Axes, x: Any, report: Report, metric: str, style: dict[str, Any]) -> None:
    marker = "o" if report.depth <= 40 else ""
    y = _numbers(report.per_visit(metric))
    known = ~np.isnan(y)  # a line goes over visits without a number
    axes.plot(x[known], y[known], marker=marker, markersize=3, linewidth=1.4, **style)
    ends = report.interval(metric)
    if ends:
        axes.fill_between(
            x, _numbers(ends[0]), _numbers(ends[1]), color=style["color"], alpha=0.15, linewidth=0
        )


def _draw_bars(axes: Axes, x: Any, report: Report, metric: str, style: dict[str, Any]) -> None:
    values, ends = _numbers(report.per_visit(metric)), report.interval(metric)
    axes.bar(x, values, width=0.8, alpha=0.85, **style)
    if ends:
        axes.vlines(x, _numbers(ends[0]), _numbers(ends[1]), color="black", linewidth=1.0)


def draw_heat(panel: Heat, report: Report) -> Figure:
    """A matrix on fixed colours; undefined entries are blank."""
    figure, axes = new_axes(panel.title, panel.x.title, panel.y.title)
    values = np.ma.masked_invalid(values_of(panel, report))
    rows, columns = values.shape
    left, top = panel.x.first - 0.5, panel.y.first - 0.5
    image = axes.imshow(
        values,
        cmap="RdBu_r" if panel.scale.signed else "viridis",
        norm=_norm(panel.scale, values_of(panel, report)),
        extent=(left, left + columns, top + rows, top),
        aspect="auto",
        interpolation="none",
    )
    figure.colorbar(image, ax=axes, label=meaning_of(panel, report)["unit"], extend="max")
    for side, labels in ((axes.xaxis, panel.x.labels), (axes.yaxis, panel.y.labels)):
        side.set_major_locator(MaxNLocator(integer=True))
        if labels is not None:
            side.set_ticks(range(len(labels)), labels, fontsize=6)
    if panel.x.labels is not None:
        axes.tick_params(axis="x", rotation=90 if max(map(len, panel.x.labels)) > 4 else 0)
    return figure


def _norm(scale: Scale, values: Any) -> Normalize:
    low, high = colour_limits(scale, values)
    if scale.kind == "symlog":
        return SymLogNorm(LINEAR_BELOW, vmin=low, vmax=high)
    return LogNorm(low, high) if scale.kind == "log" else Normalize(low, high)
