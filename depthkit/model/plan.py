"""The plan: which layer is executed at which depth.

A layer is a stored block with weights of its own, a loop one pass over a segment, a visit one execution of
a layer, and depth the number of visits. A plain stack has one visit a layer; nothing else distinguishes a
looped model from an unlooped one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

INDEXINGS = ("auto", "executed", "stored", "nominal")


class Key(NamedTuple):
    """What identifies a visit, whatever the loop count: caches, tables and banks use it, never an index."""

    segment: str
    loop: int
    slot: int

    def __str__(self) -> str:
        return f"{self.segment}.{self.loop}.{self.slot}"


@dataclass(frozen=True)
class Visit:
    """One execution of a layer. `index` counts visits from 0, `layer` indexes the stored layers."""

    index: int
    key: Key
    layer: int
    block: str


@dataclass(frozen=True)
class Segment:
    """A run of blocks executed `loops` times: `blocks` names the kind in each slot of one loop.

    `copies` is how many times its layers are stored: once, or once for every loop there can be.
    """

    name: str
    blocks: tuple[str, ...]
    loops: int = 1
    copies: int = 1


@dataclass(frozen=True)
class Plan:
    """The visits of a model in the order they are executed.

    A `part` of a plan has only some of the visits; depth indices and totals stay those of the whole.
    `nominal` is the plan at the loop counts the model is specified with, where these are others; `sampled`
    says whether loop counts change from batch to batch.
    """

    visits: tuple[Visit, ...]
    whole: Plan | None = None
    nominal: Plan | None = None
    sampled: bool = False

    @cached_property
    def depth(self) -> int:
        """Number of visits."""
        return len(self.visits)

    @cached_property
    def num_layers(self) -> int:
        """Number of stored layers."""
        return 1 + max(visit.layer for visit in self.visits)

    @cached_property
    def layer_blocks(self) -> tuple[str, ...]:
        """The block kind of every stored layer."""
        kinds = {visit.layer: visit.block for visit in self.visits}
        return tuple(kinds[layer] for layer in range(self.num_layers))

    @cached_property
    def layer_segments(self) -> tuple[str, ...]:
        """The segment of every stored layer."""
        names = {visit.layer: visit.key.segment for visit in self.visits}
        return tuple(names[layer] for layer in range(self.num_layers))

    def indices(self, indexing: str) -> list[int]:
        """The 1-based depth index l of every visit.

        `executed` counts visits. `stored` counts the layers of one loop. `nominal` is the depth at the loop
        counts the model is specified with, so that what follows a loop stays where it is; a loop beyond them
        has the index of the last one. `auto` is nominal where loop counts are sampled, else executed.
        """
        if indexing == "stored":
            order = (self.whole or self)._slots
            return [1 + order[visit.key._replace(loop=0)] for visit in self.visits]
        if self.nominal is not None and self._is_nominal(indexing):
            return [1 + self.nominal.clamped(visit.key).index for visit in self.visits]
        return [visit.index + 1 for visit in self.visits]

    def total(self, indexing: str) -> int:
        """The depth L that goes with `indices`: visits, or stored layers."""
        whole = self.whole or self
        if indexing == "stored":
            return len(whole._slots)
        return self.nominal.depth if self.nominal and self._is_nominal(indexing) else whole.depth

    def _is_nominal(self, indexing: str) -> bool:
        return indexing == "nominal" or (indexing == "auto" and self.sampled)

    def clamped(self, key: Key) -> Visit:
        """The visit with this key; of a loop past the last, the same slot of the last loop."""
        return self._by_key[key._replace(loop=min(key.loop, self.loops[key.segment] - 1))]

    @cached_property
    def loops(self) -> dict[str, int]:
        """Loop count by segment."""
        return {visit.key.segment: visit.key.loop + 1 for visit in self.visits}

    @cached_property
    def slots(self) -> dict[str, int]:
        """Visits in one loop, by segment."""
        return {visit.key.segment: visit.key.slot + 1 for visit in self.visits}

    @cached_property
    def _by_key(self) -> dict[Key, Visit]:
        return {visit.key: visit for visit in self.visits}

    @cached_property
    def _slots(self) -> dict[Key, int]:
        """Slots of all segments, numbered in order: what unrolling leaves as it is."""
        names = dict.fromkeys(visit.key._replace(loop=0) for visit in self.visits)
        return {name: number for number, name in enumerate(names)}

    def part(self, segments: frozenset[str]) -> Plan:
        """The visits of the named segments."""
        inside = tuple(visit for visit in self.visits if visit.key.segment in segments)
        return self if len(inside) == self.depth else replace(self, visits=inside, whole=self.whole or self)

    def of_block(self, block: str) -> Plan:
        """The visits of one kind of block."""
        inside = tuple(visit for visit in self.visits if visit.block == block)
        return replace(self, visits=inside, whole=self.whole or self)

    def unrolled(self) -> Plan:
        """The same visits, each with a stored layer of its own. Keys stay as they are."""
        return replace(self, visits=tuple(replace(visit, layer=visit.index) for visit in self.visits))


def make_plan(segments: list[Segment]) -> Plan:
    """Lay the segments out one after the other, loop by loop."""
    visits: list[Visit] = []
    first = 0
    for segment in segments:
        size = len(segment.blocks)
        for loop in range(segment.loops):
            start = first + size * (loop % segment.copies)
            for slot, block in enumerate(segment.blocks):
                visits.append(Visit(len(visits), Key(segment.name, loop, slot), start + slot, block))
        first += size * segment.copies
    return Plan(tuple(visits))
