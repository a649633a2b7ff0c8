"""A report: plain data with a schema version, and the arrays behind it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from depthkit.files import replacing, write_json, write_text
from depthkit.utilization.statistics import Array, Number, Sample, mean_defined, number

SCHEMA_VERSION = 2
"""Counts changes of the layout, or of what a metric's name means; unlike reports are not compared."""
CSV_COLUMNS = (
    "model",
    "segment",
    "loop",
    "slot",
    "visit",
    "layer",
    "site",
    "metric",
    "agg",
    "value",
    "ci_lo",
    "ci_hi",
)
CSV_PLACE = ("segment", "loop", "slot", "visit", "layer")


@dataclass(frozen=True)
class Report:
    """Everything an evaluation found.

    Attributes:
        content: what `report.json` holds: schema_version, model, env, data, baseline, per_visit, scalars,
            matrices and metrics (meanings, units, and the probe they are from), null (the same numbers of
            null models), canaries, skipped, timing, summary. Undefined is None.
        arrays: what `matrices.npz` holds: the matrices by name (NaN where undefined) and, as `<metric>.sums`
            and `<metric>.counts`, the per-sequence samples behind the intervals.
    """

    content: dict[str, Any]
    arrays: dict[str, Array]

    @property
    def name(self) -> str:
        """The model's name."""
        return self.content["model"]["name"]

    @property
    def depth(self) -> int:
        """Number of visits."""
        return len(self.content["per_visit"])

    @property
    def visit_noun(self) -> str:
        """`layer` where every layer is visited once, otherwise `visit`."""
        return "layer" if self.content["model"]["num_layers"] == self.depth else "visit"

    @property
    def metrics(self) -> list[str]:
        """Names of the numbers given for every visit."""
        return list(self.content["metrics"])

    def per_visit(self, metric: str) -> list[Number]:
        """One number a visit.

        Raises:
            KeyError: this report does not have the metric.
        """
        return [row[metric] for row in self.content["per_visit"]]

    def interval(self, metric: str) -> tuple[list[Number], list[Number]] | None:
        """Lower and upper ends of the 95 % intervals, or None where there are none."""
        bounds = [row["ci95"].get(metric) for row in self.content["per_visit"]]
        if None in bounds:
            return None
        return [low for low, _ in bounds], [high for _, high in bounds]

    @property
    def nulls(self) -> dict[str, Any]:
        """The null models this was held against, by name."""
        return self.content["null"]

    @property
    def kinds(self) -> list[str]:
        """The kinds of layers, in the order of their first visit."""
        return list(dict.fromkeys(row["block"] for row in self.content["per_visit"]))

    def scalar(self, name: str) -> Any:
        """A number for the whole model; None when undefined or not asked."""
        return self.content["scalars"].get(name, {}).get("value")

    def matrix_mean(self, name: str) -> Number:
        """Mean of a matrix's defined entries; None without any.

        Raises:
            KeyError: this report does not have the matrix.
        """
        return number(mean_defined(self.arrays[name].ravel()))

    def sample(self, metric: str) -> Sample | None:
        """Per-sequence sums behind a metric, where they were kept."""
        if f"{metric}.sums" not in self.arrays:
            return None
        return Sample(self.arrays[f"{metric}.sums"], self.arrays[f"{metric}.counts"])

    def relative_depth(self) -> list[float]:
        """visit / (depth - 1); a single visit sits at 0."""
        return [visit / max(1, self.depth - 1) for visit in range(self.depth)]

    def save(self, folder: str | Path, *, html: bool = True, plots: bool = True) -> Path:
        """Write report.json, per_visit.csv and matrices.npz, and on request report.html and plots/*.png.

        Each file is whole or absent, and report.json comes last.
        """
        folder = Path(folder)
        write_text(folder / "per_visit.csv", self.csv())
        with replacing(folder / "matrices.npz") as temporary:
            np.savez_compressed(temporary, **self.arrays)  # type: ignore[arg-type]
        if plots:
            from depthkit.utilization.report.plots import save_plots

            save_plots(self, folder / "plots")
        if html:
            from depthkit.utilization.report.page import report_page

            write_text(folder / "report.html", report_page(self))
        write_json(folder / "report.json", self.content)
        return folder / "report.json"

    @classmethod
    def load(cls, path: str | Path) -> Report:
        """Read a report back from its folder or its report.json.

        Raises:
            ValueError: nothing there, not a report, or of another schema version.
        """
        path = Path(path)
        file = path / "report.json" if path.is_dir() else path
        content = _read(file)
        if content.get("schema_version") != SCHEMA_VERSION:
            found = content.get("schema_version")
            raise ValueError(
                f"{file}: schema version {found}, this depthkit reads {SCHEMA_VERSION}: evaluate again"
            )
        arrays = file.with_name("matrices.npz")
        if not arrays.is_file():
            raise ValueError(f"{arrays}: missing; it belongs to {file.name}: evaluate again")
        with np.load(arrays) as stored:
            return cls(content, dict(stored))

    def csv(self) -> str:
        """Long format, one number a line; tables of several models can simply be joined."""
        text = io.StringIO()
        writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._csv_rows())
        return text.getvalue()

    def _csv_rows(self) -> Iterator[dict[str, Any]]:
        for row in self.content["per_visit"]:
            place = {"model": self.name, "site": "block"} | {column: row[column] for column in CSV_PLACE}
            for name in self.metrics:
                metric, _, aggregation = name.rpartition(".")
                low, high = row["ci95"].get(name, (None, None))
                numbers = {"value": row[name], "ci_lo": low, "ci_hi": high}
                yield place | {"metric": metric, "agg": aggregation} | numbers


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{file}: no report there; `python eval.py TARGET` writes one") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file}: not a report: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file}: not a report")
    return content
