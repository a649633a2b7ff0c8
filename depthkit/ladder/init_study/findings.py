"""A study's numbers over seeds: metrics with intervals, mean curves, and the answers to claims."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from depthkit.ladder.axes import DEPTH
from depthkit.ladder.compare import Interval, interval
from depthkit.ladder.init_study.claims import Answer, answer
from depthkit.ladder.init_study.measure import Measured
from depthkit.ladder.init_study.metrics import METRICS
from depthkit.ladder.init_study.spec import ClaimConfig, StudyConfig
from depthkit.utilization.statistics import Number

FLAT = 1.2
"""Growth over the whole depth that counts as none."""


@dataclass(frozen=True)
class Cell:
    """One method at one depth: its metrics by seed."""

    method: str
    depth: int
    seeds: dict[int, dict[str, Number]]
    curves: dict[str, list[Number]]
    """Mean over seeds by block (of the variance: geometric mean)."""

    def mean(self, metric: str) -> Interval | None:
        """Mean over seeds with its interval; None where some seed has no number."""
        values = [row[metric] for row in self.seeds.values()]
        return None if None in values else interval([float(v) for v in values if v is not None])

    @property
    def law(self) -> str:
        """What the variance does from block 2 on.

        `not finite` (it overflows), `flat` (the fitted power law changes it by less than a fifth),
        `power law` or `exponential` by the larger R2, `undecided` where the interval over seeds reaches both.
        """
        if self.mean("variance_last") is None:
            return "not finite"
        margin, exponent = self.mean("exponential_minus_power_r2"), self.mean("power_exponent")
        if margin is None or exponent is None or abs(exponent.mean) * math.log(self.depth) < math.log(FLAT):
            return "flat"
        low = margin.mean if margin.low is None else margin.low
        high = margin.mean if margin.high is None else margin.high
        return "exponential" if low > 0 else "power law" if high < 0 else "undecided"


@dataclass(frozen=True)
class Findings:
    """Everything a study found."""

    study: StudyConfig
    cells: list[Cell]
    failed: dict[str, str] = field(default_factory=dict)
    """Name of a model -> why it has no numbers."""
    refused: dict[str, str] = field(default_factory=dict)
    """Kind -> why no model takes it."""
    notes: dict[str, str] = field(default_factory=dict)
    """Method -> what could not be measured."""
    seconds: float = 0.0
    """CPU time of the measuring."""

    def cell(self, method: str, depth: int) -> Cell | None:
        """The cell at a place, or None when it has no numbers."""
        return next((c for c in self.cells if (c.method, c.depth) == (method, depth)), None)

    @property
    def depth(self) -> int:
        """The largest depth that every method was measured at."""
        return max(self.study.depths)

    def at(self, depth: int) -> list[Cell]:
        """All cells of one depth."""
        return [cell for cell in self.cells if cell.depth == depth]

    @property
    def depths(self) -> list[int]:
        """All measured depths, ascending."""
        return sorted({cell.depth for cell in self.cells})

    def answers(self) -> list[Answer]:
        """Every claim whose methods have numbers, at the deepest place that has them all."""
        found = (self._answer(claim) for claim in self.study.claims)
        return [item for item in found if item is not None]

    def _answer(self, claim: ClaimConfig) -> Answer | None:
        for depth in reversed(self.depths):
            cell = self.cell(claim.method, depth)
            other = self.cell(claim.than, depth) if isinstance(claim.than, str) else None
            if cell is None or (isinstance(claim.than, str) and other is None):
                continue
            found = answer(claim, depth, _by_seed(cell, claim.metric), _by_seed(other, claim.metric))
            if found is not None:
                return found
        return None

    def sentences(self) -> Iterator[str]:
        """The laws of growth, the extremes, and the claims, in words that follow from the numbers."""
        yield from self._laws()
        yield from self._extremes()
        yield from (answer.sentence() for answer in self.answers())

    def _laws(self) -> Iterator[str]:
        laws: dict[str, list[str]] = {}
        for cell in self.at(self.depth):
            laws.setdefault(cell.law, []).append(_with_exponent(cell))
        for law, methods in sorted(laws.items(), key=lambda item: -len(item[1])):
            yield f"Growth of the variance at depth {self.depth}, {law}: {', '.join(methods)}."

    def _extremes(self) -> Iterator[str]:
        for metric, words in (
            ("jacobian_last", "|J - I| of the last block"),
            ("angle_last", "the angle across the last block"),
        ):
            known = {c.method: m.mean for c in self.at(self.depth) if (m := c.mean(metric)) and m.mean > 0}
            if len(known) > 1:
                least, most = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
                yield (
                    f"At depth {self.depth}, where blocks write at all, {words} is smallest for {least} "
                    f"({known[least]:.3g}) and largest for {most} ({known[most]:.3g})."
                )


def _with_exponent(cell: Cell) -> str:
    """A method with the number that goes with its law."""
    metric = {"power law": "power_exponent", "exponential": "exponential_rate"}.get(cell.law)
    found = cell.mean(metric) if metric else None
    unit = "exponent" if metric == "power_exponent" else "rate a block"
    return cell.method if found is None else f"{cell.method} ({unit} {found.mean:.2g})"


def _by_seed(cell: Cell | None, metric: str) -> dict[int, Number] | None:
    return None if cell is None else {seed: row[metric] for seed, row in cell.seeds.items()}


def gather(study: StudyConfig, measured: Sequence[Measured], refused: dict[str, str]) -> Findings:
    """Put seeds together. A method that failed for one seed at one depth has no cell there."""
    groups: dict[tuple[str, int], list[Measured]] = {}
    for item in measured:
        groups.setdefault((item.rung.place["method"], item.rung.place[DEPTH]), []).append(item)
    whole = {place: items for place, items in groups.items() if not any(i.error for i in items)}
    cells = [_cell(method, depth, items) for (method, depth), items in whole.items()]
    failed = {item.rung.name: item.error for item in measured if item.error}
    notes = {item.rung.place["method"]: "; ".join(item.notes) for item in measured if item.notes}
    return Findings(study, cells, failed, refused, notes, sum(item.seconds for item in measured))


def _cell(method: str, depth: int, items: list[Measured]) -> Cell:
    seeds = {item.rung.place["seed"]: _all_metrics(item) for item in items}
    curves = {name: _mean_curve(name, [item.curves[name] for item in items]) for name in items[0].curves}
    return Cell(method, depth, seeds, curves)


def _all_metrics(item: Measured) -> dict[str, Number]:
    found = item.metrics()
    return {name: found[name] for name in METRICS}


def _mean_curve(name: str, curves: list[list[Number]]) -> list[Number]:
    table = np.array([[np.nan if v is None else v for v in curve] for curve in curves], dtype=float)
    with np.errstate(divide="ignore"):
        mean = np.exp(np.log(table).mean(0)) if name == "variance" else table.mean(0)
    return [None if np.isnan(v) else float(v) for v in mean]
