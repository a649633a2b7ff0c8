"""Utilization over training: the reports of one run's checkpoints, side by side."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from depthkit.files import write_json, write_text
from depthkit.utilization.report.report import SCHEMA_VERSION, Report

ABLATION = "ablation_delta_nats.skip"
COLUMNS = {
    "ablate_frac@0.01": "cost > 0.01",
    "ablate_frac@0.05": "cost > 0.05",
    "depth_score_relative.ablation": "centre of cost",
    "n_eff_entropy.ablation": "effective layers",
    "lens_depth@0.1": "lens settles",
    "exit_depth@95": "exit at 95 %",
}
"""Effective depths of the table, and how its headings call them."""
FRACTIONS = {
    "ablate_frac@0.01": "skip costs over 0.01 nat (share)",
    "depth_score_relative.ablation": "centre of skip costs (relative)",
    "lens_depth@0.1": "lens settles (relative)",
}


@dataclass(frozen=True)
class Trajectory:
    """Reports by training step, ascending."""

    reports: dict[int, Report]

    def __post_init__(self) -> None:
        if not self.reports or list(self.reports) != sorted(self.reports):
            raise ValueError("a trajectory needs at least one report, in the order of the steps")

    def rows(self) -> list[dict[str, Any]]:
        """One row a checkpoint: step, loss, and the effective depths that were measured."""
        return [
            {"step": step, "loss_nats": report.content["baseline"]["loss_nats"]}
            | {name: report.scalar(name) for name in COLUMNS}
            for step, report in self.reports.items()
        ]

    def save(self, folder: str | Path, *, plots: bool = True) -> Path:
        """Write utilization_over_training.json, .csv and, on request, .png."""
        base = Path(folder) / "utilization_over_training"
        write_text(base.with_suffix(".csv"), self._csv())
        if plots:
            from depthkit.utilization.report.plots import save_png

            save_png(self.figure(), base.with_suffix(".png"))
        write_json(base.with_suffix(".json"), {"schema_version": SCHEMA_VERSION, "checkpoints": self.rows()})
        return base.with_suffix(".json")

    def _csv(self) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, ("step", "loss_nats", *COLUMNS), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows())
        return text.getvalue()

    def figure(self) -> Any:
        """Loss, effective depths and, where skips were measured, their cost by layer, against the step."""
        from matplotlib.figure import Figure

        has_skips = all(ABLATION in report.metrics for report in self.reports.values())
        figure = Figure(figsize=(6.4, 8.4 if has_skips else 5.6), dpi=130, layout="constrained")
        axes = figure.subplots(3 if has_skips else 2, 1, squeeze=False)[:, 0]
        self._draw_loss(axes[0])
        self._draw_depths(axes[1])
        if has_skips:
            self._draw_costs(figure, axes[2])
        axes[-1].set_xlabel("training step")
        return figure

    def _draw_loss(self, axes: Any) -> None:
        rows = self.rows()
        axes.plot([r["step"] for r in rows], [r["loss_nats"] for r in rows], marker="o", markersize=3)
        axes.set_ylabel("loss (nats / token)")
        axes.set_title("Utilization over training", fontsize=11)
        axes.grid(axis="y", alpha=0.25)

    def _draw_depths(self, axes: Any) -> None:
        rows = self.rows()
        for name, label in FRACTIONS.items():
            values = np.array([r[name] for r in rows], dtype=float)
            if not np.isnan(values).all():
                axes.plot([r["step"] for r in rows], values, marker="o", markersize=3, label=label)
        axes.set_ylim(-0.03, 1.03)
        axes.set_ylabel("share of the depth")
        axes.grid(axis="y", alpha=0.25)
        if axes.lines:
            axes.legend(frameon=False, fontsize=8)

    def _draw_costs(self, figure: Any, axes: Any) -> None:
        from matplotlib.colors import SymLogNorm
        from matplotlib.ticker import MaxNLocator

        reports = list(self.reports.values())
        costs = np.array([report.per_visit(ABLATION) for report in reports], dtype=float).T
        limit = max(float(np.nanmax(np.abs(costs))), 0.1)
        # Costs span decades; steps are drawn as equal columns, since checkpoints need not be evenly spaced.
        norm = SymLogNorm(0.01, vmin=-limit, vmax=limit)
        image = axes.imshow(
            costs, cmap="RdBu_r", norm=norm, aspect="auto", interpolation="none", origin="lower"
        )
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        shown = np.unique(np.linspace(0, len(reports) - 1, min(len(reports), 8)).round().astype(int))
        axes.set_xticks(shown, [str(list(self.reports)[i]) for i in shown])
        axes.set_ylabel(reports[0].visit_noun)
        figure.colorbar(image, ax=axes, label="skip cost (nats)")
