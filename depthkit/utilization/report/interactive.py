"""Interactive figures of one report: hover, zoom, the null in grey, loops and kinds of layers marked."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from depthkit.utilization.report.figures import Axis, Heat, Lines, Panel, drawn_values, meaning_of, values_of
from depthkit.utilization.report.marks import Marks, marks
from depthkit.utilization.report.report import Report
from depthkit.utilization.report.scales import Scale, colour_limits, symlog, symlog_ticks
from depthkit.utilization.statistics import Array

COLOURS = ("#0b61a4", "#d1495b", "#2a9d8f", "#8a5cd1", "#e08e0b", "#3d405b", "#4cc9f0", "#a44a3f")
KIND_COLOURS = ("#cfe3f5", "#f6c9a8", "#cde8c9", "#e0cdf0", "#f3e3a3", "#d9d9d9")
GREY = "#8b949e"
MOST_BARS = 64
"""Visits from which on there are lines without markers instead of bars."""
HEIGHT, STRIP = 380, 0.035
"""Pixels of a figure, and the share of its height that the strip of layer kinds takes."""


def figure(panel: Panel, report: Report) -> go.Figure:
    """One figure of one report."""
    drawn = _lines(panel, report) if isinstance(panel, Lines) else _heat(panel, report)
    drawn.update_layout(**layout(panel.title))
    return drawn


def layout(title: str) -> dict[str, Any]:
    """What all figures share."""
    return {
        "title": {"text": title, "font": {"size": 15}, "x": 0.01, "y": 0.98, "yanchor": "top"},
        "template": "plotly_white",
        "height": HEIGHT,
        "margin": {"l": 62, "r": 16, "t": 52, "b": 66},
        "legend": {"orientation": "h", "y": -0.2, "yanchor": "top", "x": 0, "xanchor": "left"},
        "hovermode": "closest",
        "bargap": 0.15,
    }


def _lines(panel: Lines, report: Report) -> go.Figure:
    drawn, found, visits = go.Figure(), marks(report), np.arange(float(report.depth))
    drawn.add_traces(nulls(panel, report, visits))
    for index, (label, metric) in enumerate(panel.metrics.items()):
        colour = COLOURS[index % len(COLOURS)]
        bars = panel.bars and index == 0 and report.depth <= MOST_BARS
        drawn.add_traces(trace(panel, report, metric, visits, label, colour, bars))
    drawn.update_layout(yaxis=y_axis(panel, panel.scale.holding(drawn_values(panel, report))))
    drawn.update_layout(meta={"depth": report.depth, "noun": report.visit_noun, "axis": "visit"})
    drawn.update_xaxes(title=report.visit_noun, range=[-0.6, report.depth - 0.4], showgrid=False)
    _mark(drawn, found)
    return drawn


def numbers(values: Any) -> Array:
    """None as NaN."""
    return np.array([np.nan if v is None else v for v in values], dtype=float)


def heights(scale: Scale, values: Any) -> Array:
    """Where numbers are drawn; a symlog axis is a linear one of transformed numbers."""
    found = numbers(values)
    return symlog(found) if scale.kind == "symlog" else found


def trace(
    panel: Lines, report: Report, metric: str, x: Array, label: str, colour: str, bars: bool = False
) -> list[Any]:
    """One metric with its interval: bars with error bars, or a line with a band."""
    ends, y = report.interval(metric), heights(panel.scale, report.per_visit(metric))
    shared: dict[str, Any] = {"x": x, "y": y, "name": label, "legendgroup": label}
    shared["hovertext"] = hover(report, metric)
    shared["hovertemplate"] = "%{hovertext}<extra>" + label + "</extra>"
    if bars:
        errors = _errors(panel.scale, y, ends)
        return [go.Bar(marker={"color": colour}, error_y=errors, textposition="none", **shared)]
    mode = "lines+markers" if report.depth <= MOST_BARS else "lines"
    style: dict[str, Any] = {"line": {"color": colour, "width": 2}, "marker": {"size": 5}}
    line = go.Scatter(mode=mode, connectgaps=True, **style, **shared)
    band = (
        []
        if ends is None
        else _band(x, (heights(panel.scale, ends[0]), heights(panel.scale, ends[1])), colour, label)
    )
    return [*band, line]


def hover(report: Report, metric: str) -> list[str]:
    """What is shown over every visit."""
    ends, depth = report.interval(metric), report.relative_depth()
    told = []
    for row, value in zip(report.content["per_visit"], report.per_visit(metric), strict=True):
        visit = row["visit"]
        spread = ""
        if ends and ends[0][visit] is not None and ends[1][visit] is not None:
            spread = f" [{ends[0][visit]:.4g}, {ends[1][visit]:.4g}]"
        number = "undefined" if value is None else f"<b>{value:.4g}</b>{spread}"
        place = f"visit {visit} ({row['key']}), layer {row['layer']}, {row['block']}"
        told.append(f"{number}<br>{place}<br>relative depth {depth[visit]:.3f}")
    return told


def _errors(scale: Scale, y: Array, ends: Any) -> dict[str, Any] | None:
    if ends is None:
        return None
    low, high = (heights(scale, end) for end in ends)
    look = {"thickness": 1, "width": 2, "color": "#24292f", "symmetric": False}
    return look | {"array": high - y, "arrayminus": y - low}


def _band(x: Array, ends: tuple[Array, Array], colour: str, group: str) -> list[go.Scatter]:
    """The area between a lower and an upper line."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    shared: dict[str, Any] = {"x": x, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    shared |= {"showlegend": False, "legendgroup": group}
    fill = {"fill": "tonexty", "fillcolor": f"rgba({red},{green},{blue},0.14)"}
    return [go.Scatter(y=ends[0], **shared), go.Scatter(y=ends[1], **fill, **shared)]


def nulls(panel: Lines, report: Report, x: Array) -> list[Any]:
    """The panel's first metric of every null model: a grey line and its interval."""
    metric, drawn = next(iter(panel.metrics.values())), []
    for place, (name, null) in enumerate(report.nulls.items()):
        found = null["per_visit"].get(metric)
        if found is None:
            continue
        label = f"null: {name.replace('_', ' ')}"
        if found["low"]:
            ends = heights(panel.scale, found["low"]), heights(panel.scale, found["high"])
            drawn += _band(x, ends, GREY, label)
        drawn.append(
            go.Scatter(
                x=x,
                y=heights(panel.scale, found["values"]),
                mode="lines",
                connectgaps=True,
                name=label,
                legendgroup=label,
                line={"color": GREY, "width": 1.5, "dash": ("dash", "dot")[place % 2]},
                customdata=numbers(found["values"]),
                hovertemplate="%{customdata:.4g}<extra>" + label + "</extra>",
            )
        )
    return drawn


def y_axis(panel: Lines, scale: Scale) -> dict[str, Any]:
    """The axis of a scale that has limits, with the guides as thin lines."""
    assert scale.limits is not None
    low, high = scale.limits
    axis: dict[str, Any] = {"title": panel.y, "zeroline": scale.signed, "exponentformat": "power"}
    axis |= {"zerolinecolor": "#57606a", "zerolinewidth": 1}
    if scale.kind == "log":
        return axis | {"type": "log", "range": [np.log10(low), np.log10(high)], "dtick": 1}
    if scale.kind == "symlog":
        ticks = sorted({*symlog_ticks(low, high), *panel.guides})
        shown = [f"{tick:g}" for tick in ticks]
        ends = symlog(np.array([low, high]))
        return axis | {"tickvals": symlog(np.array(ticks)), "ticktext": shown, "range": list(ends)}
    room = 0.03 * (high - low)
    return axis | {"range": [low - room, high + room]}


def _mark(drawn: go.Figure, found: Marks) -> None:
    """Lines where loops begin, names of segments, and a strip that tells the layers' kinds."""
    for boundary in found.boundaries:
        drawn.add_vline(boundary, line={"color": "#c3c9d0", "width": 1, "dash": "dot"}, layer="below")
    for stretch in found.segments:
        middle = (stretch.first + stretch.last) / 2
        look = {"showarrow": False, "font": {"size": 10, "color": "#57606a"}, "yanchor": "bottom"}
        drawn.add_annotation(x=middle, y=1.0, yref="paper", text=stretch.label, **look)
    if len(found.kinds) < 2:
        return
    drawn.add_trace(_strip(found))
    drawn.update_layout(
        yaxis={"domain": [2 * STRIP, 1]},
        yaxis2={"domain": [0, STRIP], "visible": False, "fixedrange": True},
        xaxis={"anchor": "free", "position": 0},
    )


def _strip(found: Marks) -> go.Heatmap:
    count = len(found.kinds)
    ends = [(code / count, (code + 1) / count) for code in range(count)]
    colours = [KIND_COLOURS[code % len(KIND_COLOURS)] for code in range(count)]
    scale = [[end, colour] for pair, colour in zip(ends, colours, strict=True) for end in pair]
    return go.Heatmap(
        z=[found.codes],
        yaxis="y2",
        zmin=-0.5,
        zmax=count - 0.5,
        colorscale=scale,
        showscale=False,
        text=[[found.kinds[code] for code in found.codes]],
        hovertemplate="visit %{x}: %{text}<extra></extra>",
    )


def _heat(panel: Heat, report: Report) -> go.Figure:
    unit = meaning_of(panel, report)["unit"]
    drawn = go.Figure(heatmap(panel, report, colorbar={"title": {"text": unit, "side": "right"}}))
    for side, axis in (("xaxis", panel.x), ("yaxis", panel.y)):
        drawn.update_layout({side: {"title": axis.title, "constrain": "domain"}})
        drawn.update_layout({side: ticks(axis, values_of(panel, report).shape[side == "xaxis"])})
    drawn.update_yaxes(autorange="reversed")
    return drawn


def ticks(axis: Axis, size: int) -> dict[str, Any]:
    """Whole numbers, or the names of the entries."""
    if axis.labels is not None:
        return {"tickvals": list(range(len(axis.labels))), "ticktext": axis.labels}
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if size <= 10 * step)
    return {"tick0": 0, "dtick": step}


def heatmap(panel: Heat, report: Report, **look: Any) -> go.Heatmap:
    """A matrix as a trace; numbers beyond the colours are told on hover."""
    values = values_of(panel, report)
    low, high = colour_limits(panel.scale, values)
    drawn, ends, told = values, (low, high), "z"
    if panel.scale.kind == "symlog":
        drawn, ends, told = symlog(values), tuple(symlog(np.array([low, high]))), "customdata"
        look = look | {"customdata": values.astype(np.float32)}
        ticks = symlog_ticks(low, high)
        bar = {"tickvals": list(symlog(np.array(ticks))), "ticktext": [f"{tick:g}" for tick in ticks]}
        look = look | ({"colorbar": look["colorbar"] | bar} if "colorbar" in look else {})
    names = (f"{panel.y.title} %{{y}}", f"{panel.x.title} %{{x}}", f"<b>%{{{told}:.4g}}</b>")
    return go.Heatmap(
        z=drawn.astype(np.float32),
        x0=panel.x.first,
        y0=panel.y.first,
        zmin=ends[0],
        zmax=ends[1],
        colorscale="RdBu_r" if panel.scale.signed else "Viridis",
        hovertemplate="<br>".join(names) + "<extra></extra>",
        hoverongaps=False,
        **look,
    )
