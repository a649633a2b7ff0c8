"""`summary.md`: the tables and sentences of a ladder as Markdown, to paste where results are written down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import methodcaller

from depthkit.ladder.axes import short_name
from depthkit.ladder.compare import ALPHA, CORRECTION
from depthkit.ladder.results import Row
from depthkit.ladder.summary import Summary, spread, why
from depthkit.ladder.table import SCALARS

LAST_VARIANCE = "variance of the stream after the last visit"


def summary_markdown(summary: Summary) -> str:
    """Mean losses, mean scalars of the reports, and everything that was found in words."""
    results = summary.results
    parts = [
        "Held-out loss, nats per token on the same windows for every rung: mean over "
        f"{results.ladder.replicate} ± half of the 95 % Student-t interval.",
        _table(summary, lambda rows: spread(results.loss(rows))),
    ]
    for name, mean in _quantities():
        table = _table(summary, mean)
        if any(character.isdigit() for character in table.split("\n", 2)[-1]):
            parts += [f"{name}, mean over {results.ladder.replicate}:", table]
    for heading, lines in summary.sentences().items():
        parts += [f"## {heading}", "\n".join(f"- {line}" for line in lines)]
    parts.append(
        f"Comparisons are paired t-tests; {len(summary.verdicts)} p-values are corrected together "
        f"({CORRECTION}), and what is above {ALPHA} then is called tied."
    )
    unfinished = [f"- {row.rung.name}: {why(row)}" for row in summary.unfinished]
    parts += ["## Without a result", "\n".join(unfinished)] if unfinished else []
    return "\n\n".join(parts) + "\n"


def _quantities() -> Iterator[tuple[str, Callable[[Sequence[Row]], str]]]:
    for name in SCALARS:
        yield f"`{name}`", partial(_mean, methodcaller("scalar", name))
    yield f"`variance.mean`, {LAST_VARIANCE}", partial(_mean, _last_variance)


def _last_variance(row: Row) -> float | None:
    if row.report is None or "variance.mean" not in row.report.metrics:
        return None
    return row.report.per_visit("variance.mean")[-1]


def _mean(quantity: Callable[[Row], float | None], rows: Sequence[Row]) -> str:
    found = [value for row in rows if (value := quantity(row)) is not None]
    return f"{sum(found) / len(found):.3g}" if found and len(found) == len(rows) else ""


def _table(summary: Summary, cell: Callable[[Sequence[Row]], str]) -> str:
    """What is compared in one direction, everything else in the other; the longer one goes down."""
    results = summary.results
    if not results.cells:
        return "(nothing finished)"
    compared = results.lines or next(iter(results.axes), None)
    found: dict[tuple[str, str], str] = {}
    for place, rows in results.cells.items():
        others = [
            f"{short_name(axis)} {value}"
            for axis, value in zip(results.axes, place, strict=True)
            if axis != compared
        ]
        name = results.ladder.replicate if compared is None else results.at(place, compared)
        found[", ".join(others), str(name)] = cell(rows)
    down, across = (list(dict.fromkeys(key[side] for key in found)) for side in (0, 1))
    if len(across) > len(down):
        found = {(second, first): value for (first, second), value in found.items()}
        down, across = across, down
    lines = [["", *across], ["---"] * (1 + len(across))]
    lines += [[row, *(found.get((row, column), "") for column in across)] for row in down]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
