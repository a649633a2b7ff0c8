"""Self-contained HTML pages: Jinja2 templates with Plotly and its script embedded, nothing fetched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from depthkit.utilization.report.figures import TABLE, Panel, meaning_of, panels, short
from depthkit.utilization.report.generic import groups
from depthkit.utilization.report.interactive import COLOURS, KIND_COLOURS, figure
from depthkit.utilization.report.overlay import overlay, overlays
from depthkit.utilization.report.report import Report

if TYPE_CHECKING:
    from depthkit.utilization.report.compare import Comparison

HERE = "depthkit.utilization.report"


def report_page(report: Report) -> str:
    """The page of one report: sentences, chosen figures, then every probe's own."""
    others = groups(report)
    owners = dict.fromkeys(scalar["probe"] for scalar in report.content["scalars"].values())
    return render(
        "report.html.j2",
        report=report,
        figures=_drawn(panels(report), report),
        groups={
            probe: _drawn(others.get(probe, []), report) for probe in [*others, *_missing(owners, others)]
        },
        columns=[(name, label) for name, label in TABLE if name in report.metrics],
        kinds=dict(zip(report.kinds, KIND_COLOURS * len(report.kinds), strict=False)),
    )


def _missing(names: Any, known: Any) -> list[str]:
    return [name for name in names if name not in known]


def _drawn(chosen: Sequence[Panel], report: Report) -> list[tuple[Markup, str]]:
    """Each figure with the words that stand under it."""
    words = [meaning_of(panel, report)["definition"] for panel in chosen]
    return list(zip(embed([figure(panel, report) for panel in chosen]), words, strict=True))


def comparison_page(comparison: Comparison) -> str:
    """The page of several reports."""
    content, every = comparison.content, overlays(comparison)
    figures = embed([overlay(each, comparison) for each in every])
    drawn = list(zip(figures, every, strict=True))
    return render(
        "compare.html.j2",
        c=content,
        chosen=[pair for pair in drawn if not pair[1].extra],
        extra=[pair for pair in drawn if pair[1].extra],
        scalars=list(dict.fromkeys(name for model in content["models"] for name in model["scalars"])),
        colours=COLOURS,
    )


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
    """The HTML of each figure: its data, drawn by the page's script when it comes into view."""
    return [
        Markup('<div class="figure" style="min-height: {}px"><div class="plot"></div>{}</div>').format(
            figure.layout.height or 450, _data(figure)
        )
        for figure in figures
    ]


def _data(figure: go.Figure) -> Markup:
    # "</script>" inside the data would end it.
    data = figure.to_json().replace("<", "\\u003c")
    return Markup(f'<script type="application/json">{data}</script>')
