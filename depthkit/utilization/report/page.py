"""Self-contained HTML pages: Jinja2 templates with Plotly and its script embedded, nothing fetched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from depthkit.utilization.report.figures import RELATIVE, TABLE, Heat, Lines, overlaid, panels, short
from depthkit.utilization.report.report import Report

if TYPE_CHECKING:
    from depthkit.utilization.report.compare import Comparison

HERE = "depthkit.utilization.report"
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")


def report_page(report: Report) -> str:
    """The page of one report."""
    figures = [figure(panel, [report]) for panel in panels(report)]
    columns = [(name, label) for name, label in TABLE if name in report.metrics]
    return render("report.html.j2", report=report, figures=embed(figures), columns=columns)


def comparison_page(comparison: Comparison) -> str:
    """The page of several reports."""
    reports, content = comparison.reports, comparison.content
    figures = [figure(panel, reports) for panel in panels(*reports)]
    names = dict.fromkeys(name for model in content["models"] for name in model["scalars"])
    shared = {key: content[key] for key in ("data", "models", "summary")}
    return render("compare.html.j2", figures=embed(figures), scalars=list(names), **shared)


def render(template: str, package: str = HERE, /, **values: Any) -> str:
    """Fill a template of `package`, which may extend ours; text is escaped, a missing value is an error."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name, "templates") for name in (package, HERE)]),
        autoescape=select_autoescape(["html.j2", "html"], default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["short"] = short
    return environment.get_template(template).render(plotly=Markup(get_plotlyjs()), **values)


def embed(figures: Sequence[go.Figure]) -> list[Markup]:
    """The HTML of each figure, without the script that all share."""
    settings = {"displaylogo": False, "responsive": True}
    return [Markup(f.to_html(full_html=False, include_plotlyjs=False, config=settings)) for f in figures]


def figure(panel: Lines | Heat, reports: Sequence[Report]) -> go.Figure:
    """An interactive figure: by visit for one report, overlaid on relative depth for several."""
    if isinstance(panel, Lines) and len(reports) > 1:
        panel = overlaid(panel)
    drawn = _lines(panel, reports) if isinstance(panel, Lines) else _heat(panel, reports[0])
    drawn.update_layout(
        title={"text": panel.title, "font": {"size": 16}, "y": 0.98, "yanchor": "top"},
        template="plotly_white",
        height=420,
        margin={"l": 70, "r": 20, "t": 95, "b": 55},
        legend={"orientation": "h", "y": -0.2, "yanchor": "top", "x": 0, "xanchor": "left"},
    )
    return drawn


def _lines(panel: Lines, reports: Sequence[Report]) -> go.Figure:
    drawn, single = go.Figure(), len(reports) == 1
    for index, (report, label, metric) in enumerate(
        (r, k, m) for r in reports for k, m in panel.metrics.items()
    ):
        colour = COLOURS[index % len(COLOURS)]
        drawn.add_trace(_trace(panel, report, metric, label if single else report.name, colour, single))
    drawn.update_yaxes(
        title=panel.y, type="log" if panel.scale == "log" else "linear", exponentformat="power"
    )
    drawn.update_xaxes(title=reports[0].visit_noun if single else RELATIVE)
    if panel.limits:
        drawn.update_yaxes(range=list(panel.limits))
    drawn.update_layout(updatemenus=_menus(panel, reports))
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
        "textposition": "none" if panel.bars else None,
        "customdata": report.relative_depth(),
        "hovertemplate": "%{text}<br>relative depth %{customdata:.2f}<br>%{y:.5g}<extra>"
        + label
        + "</extra>",
        "error_y": _error(values, ends),
    }
    shared = {key: value for key, value in shared.items() if value is not None}
    if panel.bars:
        return go.Bar(marker={"color": colour}, **shared)
    return go.Scatter(mode="lines+markers", line={"color": colour}, marker={"size": 5}, **shared)


def _error(values: Any, ends: Any) -> dict[str, Any] | None:
    if ends is None or None in values or None in ends[0] or None in ends[1]:
        return None
    up, down = np.subtract(ends[1], values), np.subtract(values, ends[0])
    return {"array": list(up), "arrayminus": list(down), "symmetric": False, "thickness": 1, "width": 2}


def _menus(panel: Lines, reports: Sequence[Report]) -> list[dict[str, Any]]:
    """Switches: visits or relative depth, linear or logarithmic."""
    scales = [
        {"label": name, "method": "relayout", "args": [{"yaxis.type": name}]} for name in ("linear", "log")
    ]
    menus = [_menu(scales, 0.0, active=int(panel.scale == "log"))]
    if len(reports) == 1 and reports[0].depth > 1:
        visits, count = list(range(reports[0].depth)), len(panel.metrics)
        axes = [
            _axis("by " + reports[0].visit_noun, reports[0].visit_noun, [visits] * count),
            _axis("by relative depth", RELATIVE, [reports[0].relative_depth()] * count),
        ]
        menus.append(_menu(axes, 0.25, active=0))
    return menus


def _axis(label: str, title: str, x: list[Any]) -> dict[str, Any]:
    return {"label": label, "method": "update", "args": [{"x": x}, {"xaxis.title.text": title}]}


def _menu(buttons: list[dict[str, Any]], x: float, active: int) -> dict[str, Any]:
    place = {"x": x, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "pad": {"b": 2}}
    look = {"type": "buttons", "direction": "right", "font": {"size": 10}, "showactive": True}
    return {**look, "buttons": buttons, "active": active, **place}


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
