"""Several reports on one page: shapes on relative depth for all, differences only between like data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from depthkit.files import write_json, write_text
from depthkit.utilization.effective_depth import SAMPLED, paired
from depthkit.utilization.report.build import BASELINE
from depthkit.utilization.report.report import SCHEMA_VERSION, Report
from depthkit.utilization.statistics import Number, Sample, paired_difference

LIKE = {
    "data.sha256": "the token ids",
    "data.n_tokens_scored": "the number of scored tokens",
    "model.dtype": "the number format",
}
"""What must agree before numbers of two reports may be subtracted."""


@dataclass(frozen=True)
class Comparison:
    """Reports side by side, and what `compare.json` holds about them.

    `groups` are the reports that were measured alike; differences are taken inside a group only.
    """

    reports: list[Report]
    groups: list[list[Report]]
    content: dict[str, Any]

    def save(self, folder: str | Path, *, html: bool = True, plots: bool = True) -> Path:
        """Write compare.json and, on request, compare.html and compare/*.png."""
        folder = Path(folder)
        if plots:
            from depthkit.utilization.report.overlay import save_plots

            save_plots(self, folder / "compare")
        if html:
            from depthkit.utilization.report.page import comparison_page

            write_text(folder / "compare.html", comparison_page(self))
        write_json(folder / "compare.json", self.content)
        return folder / "compare.json"


def compare(reports: Sequence[Report]) -> Comparison:
    """Overlay any number of reports.

    Reports of the same tokens are compared by a paired bootstrap: the same sequences are drawn for both.
    Models with different tokenizers cannot read the same tokens, so between them only shapes and numbers
    without a token in them are shown, and losses as bits a byte where the bytes are known.

    Raises:
        ValueError: fewer than two reports, or unlike data although the tokenizer is the same or not known;
            the message names the difference.
    """
    if len(reports) < 2:
        raise ValueError(f"compare: needs at least two reports, got {len(reports)}")
    named = _distinct(reports)
    groups = _alike(named)
    pairs = [_pair(first, second) for group in groups for first, second in combinations(group, 2)]
    content = {
        "schema_version": SCHEMA_VERSION,
        "groups": [{"models": [r.name for r in group], "data": group[0].content["data"]} for group in groups],
        "models": [_model(report) for report in named],
        "differences": pairs,
        "summary": [*_about(groups), *(_sentence(pair) for pair in pairs)],
    }
    return Comparison(named, groups, content)


def _alike(reports: Sequence[Report]) -> list[list[Report]]:
    """Groups of reports that were measured alike, in the order of their first.

    Raises:
        ValueError: two differ although nothing says that their tokenizers do.
    """
    groups: dict[tuple[Any, ...], list[Report]] = {}
    for report in reports:
        key = tuple(_look_up(report.content, path) for path in LIKE)
        groups.setdefault(key, []).append(report)
    for first, other in combinations([group[0] for group in groups.values()], 2):
        if None in (tokenizer(first), tokenizer(other)) or tokenizer(first) == tokenizer(other):
            _refuse(first, other)
    return list(groups.values())


def tokenizer(report: Report) -> str | None:
    """Fingerprint of the tokenizer that made the tokens; None when it is not known."""
    found: str | None = report.content["data"].get("tokenizer") or report.content["model"].get("tokenizer")
    return found


def _refuse(first: Report, other: Report) -> None:
    for path, words in LIKE.items():
        mine, theirs = _look_up(first.content, path), _look_up(other.content, path)
        if mine != theirs:
            raise ValueError(
                f"{first.name} and {other.name} cannot be compared: {words} differ ({path}: {_cut(mine)} and "
                f"{_cut(theirs)}), and not because of their tokenizers. Evaluate both with the same data, "
                "sequences, sequence_length and seed."
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
    content = report.content
    return {
        **content["model"],
        "noun": report.visit_noun,
        "kinds": report.kinds,
        "baseline": content["baseline"],
        "data": content["data"],
        "scalars": {name: scalar["value"] for name, scalar in content["scalars"].items()},
        "null": {name: null["scalars"] for name, null in content["null"].items()},
        "layer_evals": content["timing"]["layer_evals"],
        "summary": content["summary"],
    }


def _pair(first: Report, second: Report) -> dict[str, Any]:
    seed = first.content["data"]["seed"]
    return {
        "first": first.name,
        "second": second.name,
        "metric": f"{BASELINE}, second minus first",
        **paired_difference(_losses(first), _losses(second), seed),
        "scalars": _depths(first, second, seed),
    }


def _losses(report: Report) -> Sample:
    sample = report.sample(BASELINE)
    if sample is None:
        raise ValueError(f"{report.name}: matrices.npz has no {BASELINE}: evaluate again")
    return sample


def _depths(first: Report, second: Report, seed: int) -> dict[str, dict[str, Number]]:
    """Effective depths, second minus first, where both have the sample behind them."""
    found = {}
    for name, (source, statistic) in SAMPLED.items():
        mine, theirs = first.sample(source), second.sample(source)
        if mine is not None and theirs is not None:
            found[name] = paired(mine, theirs, statistic, seed)
    return found


def _about(groups: list[list[Report]]) -> list[str]:
    """One sentence when not all reports are of the same tokens."""
    if len(groups) == 1:
        return []
    told = "; ".join(" and ".join(report.name for report in group) for group in groups)
    about = (
        f"{len(groups)} groups with different tokenizers, so with different tokens ({told}): between groups "
        "shapes can be compared, losses only as bits a byte, and no differences are taken."
    )
    known = [(r.name, r.content["baseline"]["bits_per_byte"]) for group in groups for r in group]
    bits = ", ".join(f"{name} {value:.3f}" for name, value in known if value is not None)
    return [about, f"Bits a byte of text, not of the same windows: {bits}."] if bits else [about]


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
