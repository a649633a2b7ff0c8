"""Self-contained HTML pages: Jinja2 templates with Plotly and its script embedded, nothing fetched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from depthkit.utilization.report.figures import Heat, Lines, panels
from depthkit.utilization.report.report import Report

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")
TABLE = (
    ("variance.mean", "variance"),
    ("relative_contribution.mean", "|write| / |state|"),
    ("update_cosine.mean", "cos(write, state)"),
    ("block_influence.mean", "block influence"),
    ("ablation_delta_nats.skip", "skip cost (nats)"),
    ("lens_kl_final_to_exit_nats.mean", "KL(final || exit)"),
    ("exit_loss_nats.mean", "exit loss"),
)


def report_page(report: Report) -> str:
    """The page of one report."""
    figures = [figure(panel, [report]) for panel in panels(report)]
    columns = [(name, label) for name, label in TABLE if name in report.metrics]
    return render("report.html.j2", report=report, figures=embed(figures), columns=columns)


def render(template: str, **values: Any) -> str:
    """Fill a template of this package; a missing value is an error, and text is escaped."""
    environment = Environment(
        loader=PackageLoader("depthkit.utilization.report", "templates"),
        autoescape=select_autoescape(["html.j2", "html"], default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["short"] = short
    return environment.get_template(template).render(plotly=Markup(get_plotlyjs()), **values)


def short(value: Any) -> str:
    """A number to read; undefined is a dash."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def embed(figures: Sequence[go.Figure]) -> list[Markup]:
    """The HTML of each figure, without the script that all share."""
    settings = {"displaylogo": False, "responsive": True}
    return [Markup(f.to_html(full_html=False, include_plotlyjs=False, config=settings)) for f in figures]


def figure(panel: Lines | Heat, reports: Sequence[Report]) -> go.Figure:
    """An interactive figure: by visit for one report, overlaid on relative depth for several."""
    drawn = _lines(panel, reports) if isinstance(panel, Lines) else _heat(panel, reports[0])
    drawn.update_layout(
        title={"text": panel.title, "font": {"size": 16}},
        template="plotly_white",
        height=400,
        margin={"l": 70, "r": 20, "t": 70, "b": 55},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 1, "xanchor": "right"},
    )
    return drawn


def _lines(panel: Lines, reports: Sequence[Report]) -> go.Figure:
    drawn, single = go.Figure(), len(reports) == 1
    shown = panel.metrics if single else dict(list(panel.metrics.items())[:1])
    for index, (report, label, metric) in enumerate((r, k, m) for r in reports for k, m in shown.items()):
        colour = COLOURS[index % len(COLOURS)]
        drawn.add_trace(_trace(panel, report, metric, label if single else report.name, colour, single))
    drawn.update_yaxes(title=panel.y, type="log" if panel.log else "linear", exponentformat="power")
    drawn.update_xaxes(title=reports[0].visit_noun if single else "relative depth, visit / (depth - 1)")
    if single and reports[0].depth > 1:
        _add_axis_switch(drawn, reports[0], len(shown))
    return drawn


def _trace(panel: Lines, report: Report, metric: str, label: str, colour: str, single: bool) -> Any:
    values, rows = report.per_visit(metric), report.content["per_visit"]
    ends = report.interval(metric)
    hover = [f"visit {row['visit']}, {row['key']}, layer {row['layer']} ({row['block']})" for row in rows]
    shared: dict[str, Any] = {
        "x": list(range(report.depth)) if single else report.relative_depth(),
        "y": values,
        "name": label,
        "text": hover,
        "textposition": "none" if panel.bars and single else None,
        "customdata": report.relative_depth(),
        "hovertemplate": "%{text}<br>relative depth %{customdata:.2f}<br>%{y:.5g}<extra>" + label + "</extra>",
        "error_y": _error(values, ends),
    }
    shared = {key: value for key, value in shared.items() if value is not None}
    if panel.bars and single:
        return go.Bar(marker={"color": colour}, **shared)
    return go.Scatter(mode="lines+markers", line={"color": colour}, marker={"size": 5}, **shared)


def _error(values: Any, ends: Any) -> dict[str, Any] | None:
    if ends is None or None in values or None in ends[0] or None in ends[1]:
        return None
    up, down = np.subtract(ends[1], values), np.subtract(values, ends[0])
    return {"array": list(up), "arrayminus": list(down), "symmetric": False, "thickness": 1, "width": 2}


def _add_axis_switch(drawn: go.Figure, report: Report, count: int) -> None:
    choices = ((report.visit_noun, list(range(report.depth))), ("relative depth", report.relative_depth()))
    buttons = [
        {"label": f"by {name}", "method": "update", "args": [{"x": [x] * count}, {"xaxis.title.text": name}]}
        for name, x in choices
    ]
    place = {"x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "pad": {"r": 0, "t": 0, "b": 2, "l": 0}}
    drawn.update_layout(updatemenus=[{"type": "buttons", "direction": "right", "buttons": buttons, **place}])


def _heat(panel: Heat, report: Report) -> go.Figure:
    values = report.arrays[panel.matrix]
    first = 1 if panel.file == "angular" else 0
    shown = go.Heatmap(
        z=[[None if np.isnan(v) else float(v) for v in row] for row in values],
        x=list(range(first, first + values.shape[1])),
        zmin=panel.limits[0],
        zmax=panel.limits[1],
        colorscale="Viridis",
        colorbar={"title": report.content["matrices"][panel.matrix]["unit"]},
        hovertemplate=f"{panel.y} %{{y}}<br>{panel.x} %{{x}}<br>%{{z:.4f}}<extra></extra>",
        hoverongaps=False,
    )
    drawn = go.Figure(shown)
    drawn.update_xaxes(title=panel.x)
    drawn.update_yaxes(title=panel.y, autorange="reversed")
    return drawn
