"""Axes of a ladder: which values of which settings make a rung."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from depthkit.config import ConfigError, set_value

DEPTH = "depth"
"""The axis name that deepens a model instead of setting a key."""


class Step(NamedTuple):
    """One value of one axis: what it is called, and the settings it makes."""

    label: Any
    settings: Mapping[str, Any]


def steps(axis: str, values: list[Any] | Mapping[str, Mapping[str, Any]]) -> list[Step]:
    """A list sets the key the axis is named after; a mapping gives named variants, each with its settings."""
    if isinstance(values, Mapping):
        return [Step(name, settings) for name, settings in values.items()]
    return [Step(value, {axis: value}) for value in values]


def short_name(axis: str) -> str:
    """The last part of a dotted key, which is what tables and folders show."""
    return axis.rpartition(".")[2]


def grid(axes: Mapping[str, Any]) -> Iterator[dict[str, Step]]:
    """Every combination of one step of each axis, the last axis turning fastest."""
    for combination in itertools.product(*(steps(axis, values) for axis, values in axes.items())):
        yield dict(zip(axes, combination, strict=True))


def check_disjoint(axes: Mapping[str, Any]) -> None:
    """Refuse two axes that set one key.

    Raises:
        ConfigError: the message names both axes and the key.
    """
    owner: dict[str, str] = {}
    for axis, values in axes.items():
        for key in {key for step in steps(axis, values) for key in step.settings}:
            if owner.setdefault(key, axis) != axis:
                raise ConfigError(f"axes.{owner[key]} and axes.{axis} both set {key}")


def apply(run: Any, combination: Mapping[str, Step]) -> Any:
    """The raw run config with the settings of one combination.

    Raises:
        ConfigError: a key that runs into nothing, or a depth the model cannot take.
    """
    for step in combination.values():
        for key, value in step.settings.items():
            run = deepen(run, value) if key == DEPTH else set_value(run, key, value)
    return run


def deepen(run: Any, depth: Any) -> Any:
    """Repeat the pattern of the run's only segment until the model has `depth` visits.

    Raises:
        ConfigError: several segments, or a depth that is no whole number of patterns.
    """
    segments = run.get("model", {}).get("segments", [])
    if len(segments) != 1:
        raise ConfigError(
            f"axes.{DEPTH}: the model has {len(segments)} segments, so which one deepens is open; "
            "use an axis over model.segments.NAME.repeat"
        )
    unit = len(segments[0].get("pattern", [])) * segments[0].get("loops", 1)
    if not isinstance(depth, int) or depth < 1 or depth % unit:
        raise ConfigError(f"axes.{DEPTH}: {depth} is not a multiple of the {unit} visits of one pattern")
    return set_value(run, "model.segments.0.repeat", depth // unit)
