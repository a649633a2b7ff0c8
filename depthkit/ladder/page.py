"""The self-contained page of a ladder."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from depthkit.ladder.axes import short_name
from depthkit.ladder.compare import ALPHA, CORRECTION
from depthkit.ladder.figures import Panel, Series, bands
from depthkit.ladder.panels import panels
from depthkit.ladder.summary import SHOWN, Summary, spread, why
from depthkit.ladder.table import SCALARS
from depthkit.utilization.report.page import embed, render


def summary_page(summary: Summary) -> str:
    """Sentences, pictures, means and every rung."""
    results, drawn = summary.results, panels(summary)
    return render(
        "ladder.html.j2",
        "depthkit.ladder",
        figures=list(zip(drawn, embed([figure(panel) for panel in drawn]), strict=True)),
        sections=summary.sentences(),
        few=SHOWN,
        unfinished=[f"{row.rung.name}: {why(row)}" for row in summary.unfinished],
        gone=summary.gone,
        correction=CORRECTION,
        alpha=ALPHA,
        comparisons=len(summary.verdicts),
        axes=[short_name(axis) for axis in results.axes],
        cells=[
            (place, rows[0].rung.config.train.lr, spread(results.loss(rows)), len(rows))
            for place, rows in results.cells.items()
        ],
        all_axes=[short_name(axis) for axis in results.ladder.all_axes],
        rows=results.rows,
        scalars=SCALARS,
        replicate=results.ladder.replicate,
        swept=results.swept,
    )


def figure(panel: Panel) -> go.Figure:
    """The facets side by side, with shared axes; a click on the legend hides a line everywhere."""
    count, (rows, columns) = len(panel.facets), panel.shape()
    drawn = make_subplots(
        rows,
        columns,
        shared_yaxes="all",
        shared_xaxes="all",
        subplot_titles=list(panel.facets),
        horizontal_spacing=0.04,
        vertical_spacing=0.12,
    )
    colours = panel.colours()
    seen: set[str] = set()
    for index, lines in enumerate(panel.facets.values()):
        at = {"row": index // columns + 1, "col": index % columns + 1}
        for line in lines:
            traces = _traces(line, panel, colours[line.name], line.name not in seen)
            drawn.add_traces(traces, rows=[at["row"]] * len(traces), cols=[at["col"]] * len(traces))
            seen.add(line.name)
        if index + columns >= count:
            drawn.update_xaxes(title=panel.x, showticklabels=True, **at)
        if at["col"] == 1:
            drawn.update_yaxes(title=panel.y, **at)
    _style(drawn, panel, rows)
    return drawn


def _style(drawn: go.Figure, panel: Panel, rows: int) -> None:
    drawn.update_xaxes(type="log" if panel.x_log else "linear")
    if (ticks := panel.ticks()) is not None:
        drawn.update_xaxes(tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    drawn.update_yaxes(
        type="linear" if panel.floor is None else "log", exponentformat="power", range=panel.limits()
    )
    drawn.update_annotations(font_size=12)
    drawn.update_layout(
        title={"text": panel.title, "font": {"size": 16}},
        template="plotly_white",
        height=120 + 320 * rows,
        margin={"l": 70, "r": 20, "t": 90, "b": 55},
        legend={"y": 1, "x": 1.01},
        showlegend=list(panel.colours()) != [""],
    )


def _traces(line: Series, panel: Panel, colour: str, in_legend: bool) -> list[go.Scatter]:
    mean, low, high = bands(line.points, panel.floor)
    drawn = go.Scatter(
        x=line.x,
        y=mean,
        name=line.name,
        legendgroup=line.name,
        showlegend=in_legend,
        mode="lines+markers" if panel.few else "lines",
        marker={"size": 5},
        line={"color": colour, "width": 1.6},
        hovertemplate="%{x:.4g}: %{y:.4g}<extra>" + line.name + "</extra>",
    )
    if not panel.few:
        return [_band(line, low, high, colour), drawn]
    drawn.error_y = {
        "array": [h - m for h, m in zip(high, mean, strict=True)],
        "arrayminus": [m - v for m, v in zip(mean, low, strict=True)],
        "symmetric": False,
        "thickness": 1,
        "width": 3,
    }
    return [drawn]


def _band(line: Series, low: list[float], high: list[float], colour: str) -> go.Scatter:
    """The interval as an area, where single bars would hide the line."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return go.Scatter(
        x=[*line.x, *reversed(line.x)],
        y=[*high, *reversed(low)],
        fill="toself",
        fillcolor=f"rgba({red},{green},{blue},0.15)",
        line={"width": 0},
        mode="lines",
        legendgroup=line.name,
        showlegend=False,
        hoverinfo="skip",
    )
