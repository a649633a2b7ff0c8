"""Which layers of a pretrained model become the prelude, the core and the coda of a looped one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from depthkit.interop.sources import chosen_layers
from depthkit.registry import unknown
from depthkit.utilization import Report

INFLUENCE = "block_influence.mean"
ANGLE = "angular_distance.last_token"


class Parts(NamedTuple):
    """Layers by index in the pretrained model, from 0."""

    prelude: list[int]
    core: list[int]
    coda: list[int]

    @property
    def layers(self) -> list[int]:
        """All of them, in order."""
        return [*self.prelude, *self.core, *self.coda]


@dataclass(frozen=True)
class Choice:
    """How layers are chosen.

    Attributes:
        split: `P/C/D`, how many make the prelude, the core and the coda.
        by: `index`, `block_influence` or `angular_distance`.
        report: a report of eval.py on the model, for the last two.
        layers: the layers themselves, which then decides.
    """

    split: str
    by: str = "index"
    report: Path | None = None
    layers: str | None = None

    def parts(self, depth: int) -> Parts:
        """The parts of a model of `depth` layers.

        Raises:
            ValueError: a split that cannot be, an unknown rule, or a report that does not have what it needs.
        """
        sizes = self._sizes(depth)
        if self.by not in RULES:
            raise ValueError(f"--by: {unknown('rule', self.by, RULES)}")
        kept = self._named(sizes, depth) if self.layers else RULES[self.by](sizes, depth, self._report(depth))
        prelude, core = sizes[0], sizes[0] + sizes[1]
        return Parts(kept[:prelude], kept[prelude:core], kept[core:])

    def _sizes(self, depth: int) -> tuple[int, int, int]:
        words = self.split.split("/")
        if len(words) != 3 or not all(word.strip().isdigit() for word in words):
            raise ValueError(f"--split: {self.split!r} is not P/C/D, such as 4/8/4")
        prelude, core, coda = map(int, words)
        if core < 1 or prelude + core + coda > depth:
            raise ValueError(
                f"--split: {self.split}; the core needs 1 layer or more, and all at most the model's {depth}"
            )
        return prelude, core, coda

    def _named(self, sizes: tuple[int, int, int], depth: int) -> list[int]:
        assert self.layers is not None
        kept = chosen_layers(self.layers, depth)
        if len(kept) != sum(sizes):
            raise ValueError(f"--layers: {len(kept)} layers, but --split {self.split} has {sum(sizes)}")
        return kept

    def _report(self, depth: int) -> Report | None:
        if self.by == "index":
            return None
        if self.report is None:
            raise ValueError(f"--by {self.by} needs --report: what eval.py wrote about the model")
        report = Report.load(self.report)
        if report.depth != depth:
            raise ValueError(f"{self.report}: has {report.depth} layers, the model has {depth}")
        return report


def _by_index(sizes: tuple[int, int, int], depth: int, report: Report | None) -> list[int]:
    """The first layers, and the last ones before and in the coda; what lies between is dropped."""
    prelude, core, coda = sizes
    return [*range(prelude), *range(depth - coda - core, depth)]


def _by_influence(sizes: tuple[int, int, int], depth: int, report: Report | None) -> list[int]:
    """All but the layers of least block influence, arXiv:2403.03853."""
    assert report is not None
    if INFLUENCE not in report.metrics:
        raise ValueError(f"--report: has no {INFLUENCE}; evaluate with a preset that has the probe influence")
    values = report.per_visit(INFLUENCE)
    if None in values:
        raise ValueError(f"--report: {INFLUENCE} of layer {values.index(None)} is not defined")
    kept = np.argsort(np.array(values, float), kind="stable")[depth - sum(sizes) :]
    return sorted(int(layer) for layer in kept)


def _by_angle(sizes: tuple[int, int, int], depth: int, report: Report | None) -> list[int]:
    """All but the run of layers that turns the state least, arXiv:2403.17887."""
    assert report is not None
    if ANGLE not in report.arrays:
        raise ValueError(f"--report: has no {ANGLE}; evaluate with a preset that has the probe angular")
    dropped = depth - sum(sizes)
    if not dropped:
        return list(range(depth))
    angles = report.arrays[ANGLE][: depth - dropped + 1, dropped - 1]
    first = int(np.nanargmin(angles))
    return [layer for layer in range(depth) if not first <= layer < first + dropped]


RULES: dict[str, Callable[[tuple[int, int, int], int, Report | None], list[int]]] = {
    "index": _by_index,
    "block_influence": _by_influence,
    "angular_distance": _by_angle,
}
