"""Several reports on one page: relative depth, paired differences of loss, unlike data refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from depthkit.files import write_json, write_text
from depthkit.utilization.report.build import BASELINE
from depthkit.utilization.report.report import SCHEMA_VERSION, Report
from depthkit.utilization.statistics import Sample, paired_difference

LIKE = {
    "data.sha256": "the token ids",
    "data.n_tokens_scored": "the number of scored tokens",
    "schema_version": "the version of the metrics",
    "model.dtype": "the number format",
}
"""What must agree before two reports may be held side by side."""


@dataclass(frozen=True)
class Comparison:
    """Comparable reports, and what `compare.json` holds about them."""

    reports: list[Report]
    content: dict[str, Any]

    def save(self, folder: str | Path, *, html: bool = True, plots: bool = True) -> Path:
        """Write compare.json and, on request, compare.html and compare/*.png."""
        folder = Path(folder)
        if plots:
            from depthkit.utilization.report.plots import save_plots

            save_plots(self.reports, folder / "compare")
        if html:
            from depthkit.utilization.report.page import comparison_page

            write_text(folder / "compare.html", comparison_page(self))
        write_json(folder / "compare.json", self.content)
        return folder / "compare.json"


def compare(reports: Sequence[Report]) -> Comparison:
    """Overlay reports that were measured on the same tokens.

    Losses are compared by a paired bootstrap: the same sequences are drawn for both models.

    Raises:
        ValueError: fewer than two reports, or reports of unlike data; the message names the difference.
    """
    if len(reports) < 2:
        raise ValueError(f"compare: needs at least two reports, got {len(reports)}")
    for other in reports[1:]:
        _refuse_unlike(reports[0], other)
    named = _distinct(reports)
    seed = named[0].content["data"]["seed"]
    pairs = [_pair(first, second, seed) for first, second in combinations(named, 2)]
    content = {
        "schema_version": SCHEMA_VERSION,
        "data": named[0].content["data"],
        "models": [_model(report) for report in named],
        "differences": pairs,
        "summary": [_sentence(pair) for pair in pairs],
    }
    return Comparison(named, content)


def _refuse_unlike(first: Report, other: Report) -> None:
    for path, words in LIKE.items():
        mine, theirs = _look_up(first.content, path), _look_up(other.content, path)
        if mine != theirs:
            raise ValueError(
                f"{first.name} and {other.name} cannot be compared: {words} differ ({path}: {_cut(mine)} and "
                f"{_cut(theirs)}). Evaluate both with the same data, sequences, sequence_length and seed."
            )


def _look_up(content: dict[str, Any], path: str) -> Any:
    for part in path.split("."):
        content = content[part]
    return content


def _cut(value: Any) -> str:
    return f"{value:.12}…" if isinstance(value, str) and len(value) > 16 else str(value)


def _distinct(reports: Sequence[Report]) -> list[Report]:
    """The reports under names that differ: a repeated one gets its training step, or its number."""
    names = [report.name for report in reports]
    steps = [report.content["model"].get("step") for report in reports]
    if len(set(zip(names, steps, strict=True))) == len(reports):
        tags = [f"step {step}" for step in steps]
    else:
        tags = [str(number) for number in range(1, len(reports) + 1)]
    repeated = Counter(names)
    shown = [f"{name} ({tag})" if repeated[name] > 1 else name for name, tag in zip(names, tags, strict=True)]
    return [_renamed(report, name) for report, name in zip(reports, shown, strict=True)]


def _renamed(report: Report, name: str) -> Report:
    return replace(report, content=report.content | {"model": report.content["model"] | {"name": name}})


def _model(report: Report) -> dict[str, Any]:
    scalars = {name: scalar["value"] for name, scalar in report.content["scalars"].items()}
    baseline = report.content["baseline"]
    return {
        **report.content["model"],
        "baseline": baseline,
        "scalars": scalars,
        "summary": report.content["summary"],
    }


def _pair(first: Report, second: Report, seed: int) -> dict[str, Any]:
    return {
        "first": first.name,
        "second": second.name,
        "metric": f"{BASELINE}, second minus first",
        **paired_difference(_losses(first), _losses(second), seed),
    }


def _losses(report: Report) -> Sample:
    sample = report.sample(BASELINE)
    if sample is None:
        raise ValueError(f"{report.name}: matrices.npz has no {BASELINE}: evaluate again")
    return sample


def _sentence(pair: dict[str, Any]) -> str:
    first, second, value, low, high = (pair[key] for key in ("first", "second", "value", "low", "high"))
    if low is None:
        return f"{second} minus {first}: {value:+.4f} nat a token (one sequence, so no interval)."
    interval = f"{value:+.4f} nat, 95 % interval {low:+.4f} to {high:+.4f}"
    if low <= 0.0 <= high:
        return f"{second} and {first} are tied on these sequences ({interval})."
    return (
        f"{second} has the {'lower' if high < 0 else 'higher'} loss of the two, against {first} ({interval})."
    )
