"""Altered streams: what is run instead of the intact model, as plain values that probes can share.

Two probes that ask for equal edits share one altered stream. Visits count from 0.
Shapes: B sequences, T positions, D width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from depthkit.utilization.path import Aux, Path


class Run(Protocol):
    """`run(visit, carried, without=())`: a visit of the micro-batch at hand, counted by the engine."""

    def __call__(self, visit: int, carried: Any, /, without: Collection[str] = ()) -> tuple[Any, Aux]:
        """See `Path.run`."""


class Edit(ABC):
    """One altered stream. It equals the intact one before visit `first`; equal edits are one stream."""

    @property
    @abstractmethod
    def first(self) -> int:
        """The first visit that differs."""

    @abstractmethod
    def visits(self, depth: int) -> float:
        """Layer evaluations it costs, in a model of `depth` visits."""

    @abstractmethod
    def apply(self, visit: int, carried: Any, run: Run, path: Path) -> tuple[Any, Aux]:
        """What happens at `visit` (from `first` on) instead of `run(visit, carried)`."""

    def plain(self, visit: int) -> bool:
        """Whether `apply` at `visit` is `run(visit, carried)` and nothing else: streams may then share it."""
        return False


@dataclass(frozen=True)
class Program(Edit):
    """Other visits at some places: `runs` maps a place to the visits that run there, one after the other.

    Skip s: `{s: ()}`; swap i and j: `{i: (j,), j: (i,)}`; repeat l: `{l: (l, l)}`. A visit that runs at
    another place keeps its own gains.
    """

    runs: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def first(self) -> int:
        """The first place that differs."""
        return min(place for place, _ in self.runs)

    def visits(self, depth: int) -> float:
        """Every place from the first on, with what runs there."""
        changed = dict(self.runs)
        return sum(len(changed[place]) if place in changed else 1 for place in range(self.first, depth))

    def apply(self, visit: int, carried: Any, run: Run, path: Path) -> tuple[Any, Aux]:
        """Run what the program says."""
        aux: Aux = {}
        for which in dict(self.runs).get(visit, (visit,)):
            carried, aux = run(which, carried)
        return carried, aux

    def plain(self, visit: int) -> bool:
        """Where the program changes nothing."""
        return all(place != visit for place, _ in self.runs)


def skip(*visits: int) -> Program:
    """The state passes these visits unchanged."""
    return Program(tuple((visit, ()) for visit in sorted(visits)))


def swap(i: int, j: int) -> Program:
    """Visits i and j take each other's place."""
    return Program(((min(i, j), (max(i, j),)), (max(i, j), (min(i, j),))))


def repeat(visit: int, times: int) -> Program:
    """One visit runs `times` times in a row."""
    return Program(((visit, (visit,) * times),))


def reorder(first: int, order: tuple[int, ...]) -> Program:
    """The visits from `first` on run in another order."""
    return Program(tuple((first + place, (visit,)) for place, visit in enumerate(order)))


@dataclass(frozen=True)
class AtVisit(Edit):
    """Something else happens at one visit; all that follow run as they are."""

    visit: int

    @property
    def first(self) -> int:
        """The visit."""
        return self.visit

    def visits(self, depth: int) -> float:
        """Every visit from this one on; one that is cut counts in full."""
        return depth - self.first

    def apply(self, visit: int, carried: Any, run: Run, path: Path) -> tuple[Any, Aux]:
        """What the kind does at the visit, and the visits after it."""
        return self.instead(carried, run, path) if visit == self.first else run(visit, carried)

    def plain(self, visit: int) -> bool:
        """After the visit."""
        return visit > self.first

    @abstractmethod
    def instead(self, carried: Any, run: Run, path: Path) -> tuple[Any, Aux]:
        """What happens instead of the visit."""


@dataclass(frozen=True)
class SkipBranch(AtVisit):
    """One branch (`mixer` or `ffn`) of one visit writes nothing."""

    branch: str

    def instead(self, carried: Any, run: Run, path: Path) -> tuple[Any, Aux]:
        """The visit without the branch."""
        return run(self.visit, carried, (self.branch,))


@dataclass(frozen=True)
class SkipEarly(AtVisit):
    """A visit is skipped at positions from `start` and below `position` only; others still run it."""

    position: int
    start: int = 0

    def instead(self, carried: Any, run: Run, path: Path) -> tuple[Any, Aux]:
        """Run, then put the early positions back."""
        after, aux = run(self.visit, carried)
        before, changed = path.stream(carried), path.stream(after).clone()
        early = slice(self.start, self.position)
        changed[:, early] = before[:, early]
        return path.with_stream(after, changed), aux


@dataclass(frozen=True)
class Parallel(Edit):
    """`count` visits all read what the first of them (`begin`) reads; the mean of their outputs goes on."""

    begin: int
    count: int

    @property
    def first(self) -> int:
        """The first of them."""
        return self.begin

    def visits(self, depth: int) -> float:
        """Every visit from the first on, once."""
        return depth - self.first

    def apply(self, visit: int, carried: Any, run: Run, path: Path) -> tuple[Any, Aux]:
        """All of them at the first one's place, nothing at the others'."""
        if visit >= self.first + self.count:
            return run(visit, carried)
        if visit > self.first:
            return carried, {}
        ends = [path.stream(run(self.first + place, carried)[0]) for place in range(self.count)]
        return path.with_stream(carried, sum(ends[1:], ends[0]) / self.count), {}

    def plain(self, visit: int) -> bool:
        """After the last of them."""
        return visit >= self.first + self.count


@dataclass(frozen=True)
class Replace(AtVisit):
    """A visit's output is a function of its input: a mean write, a linear map, another sequence's write.

    `function(stream, micro-batch's rows) -> stream`; edits are equal when their names are.
    """

    name: str
    function: Callable[[Tensor, slice], Tensor] = field(compare=False)
    cost: float = 0.0

    def visits(self, depth: int) -> float:
        """The visits after it, and what the function costs."""
        return depth - self.first - 1 + self.cost

    def instead(self, carried: Any, run: Run, path: Path) -> tuple[Any, Aux]:
        """The function instead of the visit."""
        return path.with_stream(carried, self.function(path.stream(carried), path.rows)), {}
