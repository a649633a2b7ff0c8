"""What the figures show, said once for the PNG plots, the page and the comparison."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from depthkit.utilization.report.report import Report

RELATIVE = "relative depth, visit / (depth - 1)"

TABLE = (
    ("variance.mean", "variance"),
    ("relative_contribution.mean", "write / state"),
    ("update_cosine.mean", "cos"),
    ("block_influence.mean", "influence"),
    ("ablation_delta_nats.skip", "skip cost"),
    ("lens_kl_final_to_exit_nats.mean", "exit KL"),
    ("exit_loss_nats.mean", "exit loss"),
)
"""Columns of the table by visit."""


@dataclass(frozen=True)
class Lines:
    """Numbers by visit: `metrics` maps a label to a metric's name.

    `scale` is linear, log, or symlog (logarithmic both ways, linear within 0.01 of zero).
    """

    file: str
    title: str
    y: str
    metrics: dict[str, str]
    scale: str = "linear"
    bars: bool = False
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Heat:
    """A matrix of a report; `limits` fixes the colours, so that models can be held side by side."""

    file: str
    title: str
    matrix: str
    x: str
    y: str
    limits: tuple[float, float]


PANELS: tuple[Lines | Heat, ...] = (
    Lines(
        "variance",
        "Variance of the residual stream",
        "variance over features",
        {"all tokens": "variance.mean", "without token 0": "variance.mean_no_token0"},
        scale="log",
    ),
    Lines(
        "contribution",
        "Size of each write",
        "|write| / |state|",
        {
            "all tokens": "relative_contribution.mean",
            "without token 0": "relative_contribution.mean_no_token0",
        },
        scale="log",
    ),
    Lines(
        "direction",
        "Direction of each write",
        "cos(write, state)",
        {"all tokens": "update_cosine.mean", "without token 0": "update_cosine.mean_no_token0"},
    ),
    Lines("influence", "Block influence", "1 - cos(before, after)", {"all tokens": "block_influence.mean"}),
    Lines(
        "ablation",
        "Cost of skipping",
        "loss increase (nats)",
        {"skip": "ablation_delta_nats.skip"},
        scale="symlog",
        bars=True,
    ),
    Lines(
        "lens_kl",
        "Distance of an early exit from the final prediction",
        "nats",
        {
            "KL(final || exit)": "lens_kl_final_to_exit_nats.mean",
            "KL(exit || final)": "lens_kl_exit_to_final_nats.mean",
        },
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
        limits=(0.0, 1.05),
    ),
    Lines("exit_loss", "Loss of an early exit", "nats / token", {"exit": "exit_loss_nats.mean"}),
    Heat(
        "angular",
        "Angular distance over n visits (last token)",
        "angular_distance.last_token",
        "block size n",
        "first visit l",
        (0.0, 0.5),
    ),
    Heat(
        "causal",
        "Effect of skipping a visit on later writes",
        "causal_effect.ratio_of_means",
        "later visit",
        "skipped visit",
        (0.0, 1.0),
    ),
)


def panels(*reports: Report) -> list[Lines | Heat]:
    """The figures that all of these reports have numbers for; overlays have no matrices."""
    kinds = Lines | Heat if len(reports) == 1 else Lines
    return [p for p in PANELS if isinstance(p, kinds) and all(_has(report, p) for report in reports)]


def overlaid(panel: Lines) -> Lines:
    """The panel with its first metric only, named in the title: one line a model stays readable."""
    label, metric = next(iter(panel.metrics.items()))
    title = f"{panel.title}: {label}" if len(panel.metrics) > 1 else panel.title
    return replace(panel, title=title, metrics={label: metric}, bars=False)


def _has(report: Report, panel: Lines | Heat) -> bool:
    if isinstance(panel, Heat):
        return panel.matrix in report.arrays
    return all(name in report.metrics for name in panel.metrics.values())


def short(value: Any, digits: int = 4) -> str:
    """A number to read; undefined is a dash."""
    if value is None:
        return "-"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)
