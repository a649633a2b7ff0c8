"""What the figures show, said once for the PNG plots, the page and the comparison."""

from __future__ import annotations

from dataclasses import dataclass

from depthkit.utilization.report.report import Report


@dataclass(frozen=True)
class Lines:
    """Numbers by visit: `metrics` maps a label to a metric's name."""

    file: str
    title: str
    y: str
    metrics: dict[str, str]
    log: bool = False
    bars: bool = False


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
        log=True,
    ),
    Lines(
        "contribution",
        "Size of each write",
        "|write| / |state|",
        {"all tokens": "relative_contribution.mean", "without token 0": "relative_contribution.mean_no_token0"},
    ),
    Lines(
        "direction",
        "Direction of each write",
        "cos(write, state)",
        {"all tokens": "update_cosine.mean", "without token 0": "update_cosine.mean_no_token0"},
    ),
    Lines("influence", "Block influence", "1 - cos(before, after)", {"all tokens": "block_influence.mean"}),
    Lines("ablation", "Cost of skipping", "loss increase (nats)", {"skip": "ablation_delta_nats.skip"}, bars=True),
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


def panels(report: Report) -> list[Lines | Heat]:
    """The figures that this report has numbers for."""
    return [panel for panel in PANELS if _has(report, panel)]


def _has(report: Report, panel: Lines | Heat) -> bool:
    if isinstance(panel, Heat):
        return panel.matrix in report.arrays
    return all(name in report.metrics for name in panel.metrics.values())
