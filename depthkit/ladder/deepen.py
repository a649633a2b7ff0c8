"""Making a model deeper: repeating segments, or looping them more often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from depthkit import config as configs
from depthkit.config import ConfigError, set_value
from depthkit.model import SegmentConfig
from depthkit.registry import Spec, unknown


class DeepenConfig(Spec):
    """How the axis `depth` deepens a model."""

    by: Literal["repeat", "loops"] = "repeat"
    """`repeat` lays patterns out more often, each with its own layers; `loops` executes them more often."""
    segments: list[str] | None = None
    """The segments that grow, in proportion to one another; the others stay as they are. Null: with `repeat`
    all of them, which is allowed where none is looped or there is only one; with `loops` the looped one."""


@dataclass(frozen=True)
class Growing:
    """A segment that grows: where it is in the list, its size now, and the step in which it grows."""

    index: int
    name: str
    visits: int
    unit: int


def deepen(run: Any, depth: Any, rule: DeepenConfig) -> Any:
    """The raw run config with `depth` visits; segments keep their shares as nearly as whole units allow.

    Mix-LN's first quarter in Post-LN stays a quarter: 6 + 18 layers become 12 + 36.

    Raises:
        ConfigError: it is open which segments grow, or `depth` is not a number of visits they can have.
    """
    segments = _segments(run)
    growing = [_growing(segments, index, rule) for index in _chosen(segments, rule)]
    fixed = sum(_visits(s) for s in segments) - sum(part.visits for part in growing)
    counts = _share_out(depth, fixed, growing)
    for part, count in zip(growing, counts, strict=True):
        run = set_value(run, f"model.segments.{part.index}.{rule.by}", count)
    return run


def _segments(run: Any) -> list[SegmentConfig]:
    raw = (run.get("model") or {}).get("segments") or []
    return [configs.validate(SegmentConfig, item, f"model.segments.{i}") for i, item in enumerate(raw)]


def _visits(segment: SegmentConfig) -> int:
    return len(segment.pattern) * segment.repeat * segment.num_loops


def _chosen(segments: Sequence[SegmentConfig], rule: DeepenConfig) -> list[int]:
    names = [segment.name for segment in segments]
    if rule.segments is not None:
        for name in rule.segments:
            if name not in names:
                raise ConfigError(f"deepen.segments: {unknown('segment', name, names)}")
        return [names.index(name) for name in rule.segments]
    looped = [index for index, segment in enumerate(segments) if segment.longest_loops > 1]
    if len(segments) == 1:
        return [0]
    if rule.by == "repeat" and not looped:
        return list(range(len(segments)))
    if rule.by == "loops" and len(looped) == 1:
        return looped
    raise ConfigError(
        f"axes.depth: the model has segments {', '.join(names)}, so which of them grows is open; "
        "say so in deepen.segments"
    )


def _growing(segments: Sequence[SegmentConfig], index: int, rule: DeepenConfig) -> Growing:
    segment = segments[index]
    slots = len(segment.pattern)
    if rule.by == "repeat":
        return Growing(index, segment.name, _visits(segment), slots * segment.num_loops)
    if not isinstance(segment.loops, int):
        raise ConfigError(
            f"axes.depth: the loops of segment {segment.name} are drawn by a {segment.loops.kind} sampler, "
            f"so how they grow is open; use an axis over model.segments.{segment.name}.loops"
        )
    return Growing(index, segment.name, _visits(segment), slots * segment.repeat)


def _share_out(depth: Any, fixed: int, growing: Sequence[Growing]) -> list[int]:
    """Units of every growing segment: shares rounded down, then what is left to the largest remainders."""
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
        raise ConfigError(f"axes.depth: a depth is a whole number of visits, not {depth!r}")
    total = sum(part.visits for part in growing)
    ideal = [(depth - fixed) * part.visits / total / part.unit for part in growing]
    counts = [max(1, int(units)) for units in ideal]
    while left := depth - fixed - sum(n * part.unit for n, part in zip(counts, growing, strict=True)):
        able = [index for index, part in enumerate(growing) if 0 < part.unit <= left]
        if not able:
            raise ConfigError(_cannot(depth, fixed, growing))
        counts[max(able, key=lambda index: ideal[index] - counts[index])] += 1
    return counts


def _cannot(depth: int, fixed: int, growing: Sequence[Growing]) -> str:
    units = {part.name: part.unit for part in growing}
    beside = f" beside {fixed} visits that stay" if fixed else ""
    if len(units) == 1:
        (unit,) = units.values()
        return f"axes.depth: {depth} is not a multiple of the {unit} visits of one pattern{beside}"
    grown = ", ".join(f"{name} in steps of {unit}" for name, unit in units.items())
    return f"axes.depth: {depth} visits cannot be laid out{beside}: {grown}, each at least once"
