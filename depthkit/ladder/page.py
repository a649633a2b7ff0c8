"""The self-contained page of a ladder."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from depthkit.ladder.axes import short_name
from depthkit.ladder.figures import Panel, Series, bands, panels
from depthkit.ladder.summary import Summary, spread
from depthkit.utilization.report.page import COLOURS, embed, render


def summary_page(summary: Summary) -> str:
    """Sentences, pictures, means and every rung."""
    return render(
        "ladder.html.j2",
        "depthkit.ladder",
        figures=embed([figure(panel) for panel in panels(summary)]),
        verdicts=list(summary.verdicts()),
        axes=[short_name(axis) for axis in summary.axes],
        cells=[(place, spread(summary.loss(rows)), len(rows)) for place, rows in summary.cells().items()],
        all_axes=[short_name(axis) for axis in summary.ladder.axes],
        rows=summary.rows,
        replicate=summary.ladder.replicate,
    )


def figure(panel: Panel) -> go.Figure:
    """The facets side by side, with shared axes; a click on the legend hides a line everywhere."""
    facets = list(panel.facets.items())
    titles = [label for label, _ in facets]
    drawn = make_subplots(1, len(facets), shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.04)
    for column, (_, lines) in enumerate(facets, start=1):
        for index, line in enumerate(lines):
            drawn.add_trace(
                _trace(line, panel.floor, COLOURS[index % len(COLOURS)], column == 1), row=1, col=column
            )
        drawn.update_xaxes(title=panel.x, tickvals=_ticks(lines), row=1, col=column)
    drawn.update_yaxes(type="linear" if panel.floor is None else "log", exponentformat="power")
    drawn.update_yaxes(title=panel.y, row=1, col=1)
    drawn.update_layout(
        title={"text": panel.title, "font": {"size": 16}},
        template="plotly_white",
        height=430,
        margin={"l": 70, "r": 20, "t": 90, "b": 55},
        legend={"orientation": "h", "y": 1.12, "yanchor": "bottom", "x": 1, "xanchor": "right"},
    )
    return drawn


def _ticks(lines: list[Series]) -> list[float] | None:
    """The measured values themselves, where they are few."""
    measured = sorted({x for line in lines for x in line.x})
    return measured if len(measured) <= 6 else None


def _trace(line: Series, floor: float | None, colour: str, in_legend: bool) -> go.Scatter:
    mean, low, high = bands(line.points, floor)
    return go.Scatter(
        x=line.x,
        y=mean,
        name=line.name,
        legendgroup=line.name,
        showlegend=in_legend,
        mode="lines+markers",
        marker={"size": 5},
        line={"color": colour},
        error_y={
            "array": [h - m for h, m in zip(high, mean, strict=True)],
            "arrayminus": [m - v for m, v in zip(mean, low, strict=True)],
            "symmetric": False,
            "thickness": 1,
            "width": 3,
        },
        hovertemplate="%{x}: %{y:.4g}<extra>" + line.name + "</extra>",
    )
