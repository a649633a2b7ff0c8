"""What a comparison shows: a metric of several models on relative depth, their matrices in a row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from depthkit.utilization.report.compare import Comparison
from depthkit.utilization.report.figures import (
    PANELS,
    RELATIVE,
    Heat,
    Lines,
    Panel,
    drawn_values,
    has,
    meaning_of,
    overlaid,
)
from depthkit.utilization.report.generic import groups
from depthkit.utilization.report.interactive import COLOURS, heatmap, heights, layout, ticks, trace, y_axis
from depthkit.utilization.report.report import Report

BITS = "bits / byte of text"
COLUMNS = 4
"""Most matrices in a row."""
CELL = 300
"""Pixels of a row of matrices."""


@dataclass(frozen=True)
class Overlay:
    """One figure of a comparison: its panel, the models that have it (by place), and the words under it."""

    panel: Panel
    members: list[int]
    words: str
    extra: bool = False
    """Not one of the chosen figures."""

    @property
    def wide(self) -> bool:
        """Whether it needs the whole width of the page."""
        return isinstance(self.panel, Heat) and len(self.members) > 2


def overlays(comparison: Comparison) -> list[Overlay]:
    """The chosen figures, then one of every other metric, of which at least two models have numbers."""
    chosen = [_overlay(panel, comparison) for panel in PANELS]
    others: dict[str, Lines] = {}
    for report in comparison.reports:
        panels = [panel for group in groups(report).values() for panel in group if isinstance(panel, Lines)]
        others |= {panel.file: panel for panel in panels if panel.file not in others}
    extra = [_overlay(panel, comparison) for panel in others.values()]
    found = [each for each in chosen if each] + [replace(each, extra=True) for each in extra if each]
    return [each for each in found if len(each.members) > 1]


def _overlay(panel: Panel, comparison: Comparison) -> Overlay | None:
    reports = comparison.reports
    panel = overlaid(panel) if isinstance(panel, Lines) else panel
    members = [place for place, report in enumerate(reports) if has(report, panel)]
    if not members:
        return None
    words = meaning_of(panel, reports[members[0]])["definition"]
    if isinstance(panel, Lines) and _in_nats(panel, reports[members[0]]) and len(comparison.groups) > 1:
        members = [place for place in members if bits(reports[place]) is not None]
        panel, words = replace(panel, y=BITS), f"{words}; in bits a byte of text, since tokenizers differ"
    return Overlay(panel, members, words)


def _in_nats(panel: Lines, report: Report) -> bool:
    return meaning_of(panel, report)["unit"] in ("nats", "nats / token")


def bits(report: Report) -> float | None:
    """What turns this report's nats a token into bits a byte; None where the bytes are not known."""
    found = report.content["baseline"]
    if found["bits_per_byte"] is None or not found["loss_nats"]:
        return None
    return float(found["bits_per_byte"] / found["loss_nats"])


def members(each: Overlay, comparison: Comparison) -> list[tuple[int, Report]]:
    """The models of one figure with their places; numbers in bits where the figure is."""
    chosen = [(place, comparison.reports[place]) for place in each.members]
    if not isinstance(each.panel, Lines) or each.panel.y != BITS:
        return chosen
    (metric,) = each.panel.metrics.values()
    return [(place, in_bits(report, metric)) for place, report in chosen]


def in_bits(report: Report, metric: str) -> Report:
    """The report with one metric, of the model and of its null models, in bits a byte."""
    factor = bits(report)
    assert factor is not None

    def scaled(values: Any) -> Any:
        return None if values is None else [None if v is None else v * factor for v in values]

    rows = [
        row | {metric: scaled([row[metric]])[0], "ci95": row["ci95"] | _scaled_ends(row, metric, scaled)}
        for row in report.content["per_visit"]
    ]
    nulls = {
        name: null
        | {
            "per_visit": {
                k: {e: scaled(v) for e, v in s.items()} for k, s in null["per_visit"].items() if k == metric
            }
        }
        for name, null in report.nulls.items()
    }
    return replace(report, content=report.content | {"per_visit": rows, "null": nulls})


def _scaled_ends(row: dict[str, Any], metric: str, scaled: Any) -> dict[str, Any]:
    return {metric: scaled(row["ci95"][metric])} if metric in row["ci95"] else {}


def overlay(each: Overlay, comparison: Comparison) -> go.Figure:
    """One interactive figure of a comparison."""
    chosen, panel = members(each, comparison), each.panel
    return _curves(panel, chosen) if isinstance(panel, Lines) else _row(panel, chosen)


def _curves(panel: Lines, chosen: list[tuple[int, Report]]) -> go.Figure:
    drawn, (metric,) = go.Figure(), panel.metrics.values()
    values: list[Any] = []
    for place, report in chosen:
        x, colour = np.array(report.relative_depth()), COLOURS[place % len(COLOURS)]
        drawn.add_traces(_null(panel, report, metric, x, colour))
        drawn.add_traces(trace(panel, report, metric, x, report.name, colour))
        values += drawn_values(panel, report)
    drawn.update_layout(yaxis=y_axis(panel, panel.scale.holding(values)), **layout(panel.title))
    drawn.update_xaxes(title=RELATIVE, range=[-0.02, 1.02])
    return drawn


def _null(panel: Lines, report: Report, metric: str, x: Any, colour: str) -> list[go.Scatter]:
    """The first null model as a thin dotted line that comes and goes with its model."""
    found = next((null["per_visit"].get(metric) for null in report.nulls.values()), None)
    if found is None:
        return []
    line = {"color": colour, "width": 1, "dash": "dot"}
    shared: dict[str, Any] = {"legendgroup": report.name, "showlegend": False, "opacity": 0.7}
    y = heights(panel.scale, found["values"])
    return [go.Scatter(x=x, y=y, mode="lines", connectgaps=True, line=line, hoverinfo="skip", **shared)]


def _row(panel: Heat, chosen: list[tuple[int, Report]]) -> go.Figure:
    """The matrices of all models on the same colours."""
    from plotly.subplots import make_subplots

    columns = min(COLUMNS, len(chosen))
    rows = -(-len(chosen) // columns)
    names = [report.name for _, report in chosen]
    drawn = make_subplots(
        rows, columns, subplot_titles=names, horizontal_spacing=0.05, vertical_spacing=0.22 / rows
    )
    for index, (_, report) in enumerate(chosen):
        bar: dict[str, Any] = {"colorbar": {"thickness": 12}} if index == 0 else {"showscale": False}
        at = {"row": index // columns + 1, "col": index % columns + 1}
        drawn.add_trace(heatmap(panel, report, **bar), **at)
        height, width = report.arrays[panel.matrix].shape
        drawn.update_xaxes(title=panel.x.title, **ticks(panel.x, width), **at)
        drawn.update_yaxes(ticks(panel.y, height), **at)
    drawn.update_yaxes(autorange="reversed")
    drawn.update_yaxes(title=panel.y.title, col=1)
    drawn.update_annotations(font_size=12)
    look = layout(panel.title) | {"height": 130 + CELL * rows}
    drawn.update_layout(**look | {"margin": look["margin"] | {"t": 80}})
    return drawn


def save_plots(comparison: Comparison, folder: Path) -> list[Path]:
    """One PNG for every metric that is overlaid."""
    from depthkit.utilization.report.plots import draw_overlay, save_png

    drawn = []
    for each in overlays(comparison):
        if isinstance(each.panel, Lines):
            reports = [report for _, report in members(each, comparison)]
            drawn.append(save_png(draw_overlay(each.panel, reports), folder / f"{each.panel.file}.png"))
    return drawn
