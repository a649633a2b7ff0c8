"""`summary.csv`: a row a rung."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from depthkit.ladder.axes import short_name
from depthkit.ladder.cost import train_tokens
from depthkit.ladder.results import Results, Row

SCALARS = ("n_eff_entropy.ablation", "ablate_frac@0.01", "depth_score_relative.ablation", "lens_depth@0.1")
"""Numbers of the report that get a column: effective depth in some of its meanings."""

MEASURED = ("parameters", "train_flops", "loss_nats", "val_loss", "bits_per_byte", *SCALARS, "variance_last")


def rows_csv(results: Results) -> str:
    """A line a rung; what was not measured is empty."""
    axes = {axis: short_name(axis) for axis in results.ladder.all_axes}
    columns = ["rung", *axes.values(), "status", "error", "visits", "layers", "steps", "tokens", "lr"]
    text = io.StringIO()
    writer = csv.DictWriter(text, [*columns, *MEASURED, "cpu_seconds"], lineterminator="\n")
    writer.writeheader()
    for row in results.rows:
        place = {short: row.rung.place[axis] for axis, short in axes.items()}
        writer.writerow({**place, **dict(_planned(row)), **dict(_measured(row))})
    return text.getvalue()


def _planned(row: Row) -> Iterator[tuple[str, Any]]:
    run = row.rung.config
    plan = run.model.plan()
    yield from {"rung": row.rung.name, "status": row.state.state, "visits": plan.depth}.items()
    yield from {"error": row.state.where or row.state.error, "layers": plan.num_layers}.items()
    yield from {"steps": run.total_steps, "tokens": train_tokens(run), "lr": run.train.lr}.items()
    yield "cpu_seconds", row.state.seconds


def _measured(row: Row) -> Iterator[tuple[str, Any]]:
    if row.report is None or row.counts is None:
        return
    end = row.rows("end")[-1]
    yield "parameters", row.counts.stored
    yield "train_flops", row.flops(row.rung.config.total_steps)
    yield "loss_nats", row.loss
    yield from ((name, end.get(name)) for name in ("val_loss", "bits_per_byte"))
    yield from ((name, row.scalar(name)) for name in SCALARS)
    if "variance.mean" in row.report.metrics:
        yield "variance_last", row.report.per_visit("variance.mean")[-1]
