"""What is marked along the depth of a model: where loops and segments begin, and of which kind layers are."""

from __future__ import annotations

from dataclasses import dataclass

from depthkit.utilization.report.report import Report

MOST_LOOPS = 64
"""Loop boundaries beyond which only segments are marked."""


@dataclass(frozen=True)
class Stretch:
    """A segment on the axis of visits: its name, its first and last visit, and how often it loops."""

    name: str
    first: int
    last: int
    loops: int

    @property
    def label(self) -> str:
        """Name, and loops if there are several."""
        return f"{self.name} x{self.loops}" if self.loops > 1 else self.name


@dataclass(frozen=True)
class Marks:
    """Everything to mark; positions are visits, boundaries lie half-way between two.

    Attributes:
        segments: in order; empty when there is one without loops.
        boundaries: where another segment or another loop begins.
        kinds: names of the kinds of layers.
        codes: the kind of every visit, as a place in `kinds`.
    """

    segments: list[Stretch]
    boundaries: list[float]
    kinds: list[str]
    codes: list[int]


def marks(report: Report) -> Marks:
    """Read the marks off the rows of a report."""
    rows, kinds = report.content["per_visit"], report.kinds
    stretches: list[Stretch] = []
    for row in rows:
        last = stretches[-1] if stretches else None
        if last is not None and last.name == row["segment"]:
            stretches[-1] = Stretch(last.name, last.first, row["visit"], max(last.loops, row["loop"] + 1))
        else:
            stretches.append(Stretch(row["segment"], row["visit"], row["visit"], row["loop"] + 1))
    places = [(row["segment"], row["loop"]) for row in rows]
    loops = [visit - 0.5 for visit in range(1, len(rows)) if places[visit] != places[visit - 1]]
    segments = [stretch.first - 0.5 for stretch in stretches[1:]]
    plain = len(stretches) == 1 and stretches[0].loops == 1
    return Marks(
        segments=[] if plain else stretches,
        boundaries=loops if len(loops) <= MOST_LOOPS else segments,
        kinds=kinds,
        codes=[kinds.index(row["block"]) for row in rows],
    )
