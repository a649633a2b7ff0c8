"""What the figures show, said once for the PNG plots, the page and the comparison.

These figures are chosen by hand; `generic` makes one of every other number and matrix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from depthkit.utilization.report.report import Report
from depthkit.utilization.report.scales import Scale, scale_of
from depthkit.utilization.statistics import Array, Number

RELATIVE = "relative depth, visit / (depth - 1)"
TABLE = (
    ("variance.mean", "variance"),
    ("relative_contribution.mean", "write / state"),
    ("update_cosine.mean", "cos"),
    ("block_influence.mean", "influence"),
    ("ablation_delta_nats.skip", "skip cost"),
    ("lens_kl_final_to_exit_nats.mean", "exit KL"),
    ("exit_loss_nats.mean", "exit loss"),
    ("task_accuracy_drop.skip", "task drop"),
)
"""Columns of the table by visit."""


@dataclass(frozen=True)
class Lines:
    """Numbers by visit: `metrics` maps a label to a metric's name; those that are missing are left out.

    `guides` are values marked by a thin line; `bars` draws the first metric as bars.
    """

    file: str
    title: str
    y: str
    metrics: dict[str, str]
    scale: Scale
    bars: bool = False
    guides: tuple[float, ...] = ()


@dataclass(frozen=True)
class Axis:
    """One side of a matrix: its title, the number of its first entry, and names of the entries."""

    title: str
    first: int = 0
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Heat:
    """A matrix of a report on colours that are the same for all reports.

    With `segment`, `matrix` names a metric by visit, laid out by loop and slot of that segment.
    """

    file: str
    title: str
    matrix: str
    x: Axis
    y: Axis
    scale: Scale
    segment: str | None = None


Panel = Lines | Heat
LOG_RATIO = Scale("log", (1e-2, 10.0))
PANELS: tuple[Panel, ...] = (
    Lines(
        "ablation",
        "Cost of skipping",
        "loss increase (nats)",
        {
            "whole": "ablation_delta_nats.skip",
            "mixer": "ablation_delta_nats.skip_mixer",
            "feed-forward": "ablation_delta_nats.skip_ffn",
        },
        scale_of("delta", "nats"),
        bars=True,
        guides=(0.01, 0.05),
    ),
    Lines(
        "later_effect",
        "Effect of a skip on later writes",
        "|change| / |write|, mean over later visits",
        {"total": "later_effect.ratio_of_means", "direct": "local_effect.ratio_of_means"},
        scale_of("", "ratio"),
    ),
    Heat(
        "causal",
        "Effect of skipping a visit on later writes",
        "causal_effect.ratio_of_means",
        Axis("later visit"),
        Axis("skipped visit"),
        scale_of("", "ratio"),
    ),
    Heat(
        "angular",
        "Angle between states n visits apart (last token)",
        "angular_distance.last_token",
        Axis("visits apart n", 1),
        Axis("first visit"),
        scale_of("", "angle / pi"),
    ),
    Lines(
        "lens_kl",
        "Distance of an early exit from the final prediction",
        "nats",
        {
            "KL(final || exit)": "lens_kl_final_to_exit_nats.mean",
            "KL(exit || final)": "lens_kl_exit_to_final_nats.mean",
        },
        scale_of("", "nats"),
    ),
    Lines(
        "lens_agreement",
        "Agreement of an early exit with the final prediction",
        "share of positions",
        {
            "same top token": "lens_top1_agreement.mean",
            "overlap of top five": "lens_top5_overlap.mean",
            "exit accuracy": "exit_accuracy.mean",
        },
        scale_of("", "fraction"),
    ),
    Lines(
        "exit_loss",
        "Loss of an early exit",
        "nats / token",
        {"exit": "exit_loss_nats.mean"},
        scale_of("", "nats"),
    ),
    Lines(
        "contribution",
        "Size of each write",
        "|write| / |state|",
        {
            "all tokens": "relative_contribution.mean",
            "without token 0": "relative_contribution.mean_no_token0",
        },
        LOG_RATIO,
    ),
    Lines(
        "direction",
        "Direction of each write",
        "cos(write, state)",
        {"all tokens": "update_cosine.mean", "without token 0": "update_cosine.mean_no_token0"},
        scale_of("", "cosine"),
    ),
    Lines(
        "influence",
        "Block influence",
        "1 - cos(before, after)",
        {"all tokens": "block_influence.mean", "without token 0": "block_influence.mean_no_token0"},
        scale_of("", "1 - cosine"),
    ),
    Lines(
        "variance",
        "Variance of the residual stream",
        "variance over features",
        {"all tokens": "variance.mean", "without token 0": "variance.mean_no_token0"},
        scale_of("", "squared"),
    ),
)
"""The figures that open a report."""


GRIDS = {
    "ablation_delta_nats.skip": "Cost of skipping",
    "later_effect.ratio_of_means": "Effect on later writes",
}
"""Metrics that are also laid out by loop and slot, and how their figures are called."""


def panels(report: Report) -> list[Panel]:
    """The chosen figures that this report has numbers for, and those of its loops."""
    return [_measured(panel, report) for panel in PANELS if has(report, panel)] + grids(report)


def grids(report: Report) -> list[Panel]:
    """Loop by slot, for every segment that loops."""
    looped = dict.fromkeys(row["segment"] for row in report.content["per_visit"] if row["loop"] > 0)
    return [
        Heat(
            file_name(f"{metric}_by_loop_{segment}"),
            f"{title}: loops of {segment}",
            metric,
            Axis("slot"),
            Axis("loop"),
            scale_of(metric, report.content["metrics"][metric]["unit"]),
            segment,
        )
        for segment in looped
        for metric, title in GRIDS.items()
        if metric in report.metrics
    ]


def values_of(panel: Heat, report: Report) -> Array:
    """The numbers of a matrix figure."""
    if panel.segment is None:
        return report.arrays[panel.matrix]
    rows = [row for row in report.content["per_visit"] if row["segment"] == panel.segment]
    shape = max(row["loop"] for row in rows) + 1, max(row["slot"] for row in rows) + 1
    found = np.full(shape, np.nan)
    for row in rows:
        if row[panel.matrix] is not None:
            found[row["loop"], row["slot"]] = row[panel.matrix]
    return found


def meaning_of(panel: Panel, report: Report) -> dict[str, str]:
    """Unit and definition of what a figure shows (of its first metric)."""
    if isinstance(panel, Heat) and panel.segment is None:
        return report.content["matrices"][panel.matrix]
    metric = panel.matrix if isinstance(panel, Heat) else next(iter(panel.metrics.values()))
    return report.content["metrics"][metric]


def has(report: Report, panel: Panel) -> bool:
    """Whether the report has the panel's matrix, or the first of its metrics."""
    if isinstance(panel, Heat):
        return panel.matrix in report.content["matrices"] and panel.segment is None
    return next(iter(panel.metrics.values())) in report.metrics


def _measured(panel: Panel, report: Report) -> Panel:
    if isinstance(panel, Heat):
        return panel
    return replace(panel, metrics={k: m for k, m in panel.metrics.items() if m in report.metrics})


def drawn_values(panel: Lines, report: Report) -> list[Number]:
    """Every number a figure has to hold: of the model, and of the null models that are drawn beside it."""
    metrics = list(panel.metrics.values())
    mine = [value for metric in metrics for value in report.per_visit(metric)]
    theirs = [null["per_visit"].get(metrics[0], {"values": []}) for null in report.nulls.values()]
    return mine + [value for found in theirs for value in found["values"]]


def file_name(name: str) -> str:
    """What a metric's pictures are called."""
    return re.sub(r"[^\w-]+", "_", name)


def overlaid(panel: Lines) -> Lines:
    """The panel with its first metric only, named in the title: one line a model stays readable."""
    label, metric = next(iter(panel.metrics.items()))
    title = f"{panel.title}: {label}" if len(panel.metrics) > 1 else panel.title
    return replace(panel, title=title, metrics={label: metric}, bars=False)


def short(value: Any, digits: int = 4) -> str:
    """A number to read; undefined is a dash."""
    if value is None:
        return "-"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)
