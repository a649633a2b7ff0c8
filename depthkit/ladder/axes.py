"""Axes of a ladder: which values of which settings make a rung."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from depthkit.config import ConfigError, set_value
from depthkit.ladder.deepen import DeepenConfig, deepen
from depthkit.registry import unknown

DEPTH = "depth"
"""The axis name that deepens a model instead of setting a key."""

RATE = "train.lr"
"""The key of the learning rate."""

Values = list[Any] | dict[str, dict[str, Any]]


class Step(NamedTuple):
    """One value of one axis: what it is called, and the settings it makes."""

    label: Any
    settings: Mapping[str, Any]


def steps(axis: str, values: list[Any] | Mapping[str, Mapping[str, Any]]) -> list[Step]:
    """A list sets the key the axis is named after; a mapping gives named variants, each with its settings."""
    if isinstance(values, Mapping):
        return [Step(name, settings) for name, settings in values.items()]
    return [Step(value, {axis: value}) for value in values]


def labels(axes: Mapping[str, Any], axis: str) -> list[Any]:
    """What the values of one axis are called, in their order."""
    return [step.label for step in steps(axis, axes[axis])]


def short_name(axis: str) -> str:
    """The last part of a dotted key, which is what tables and folders show."""
    return axis.rpartition(".")[2]


def grid(
    axes: Mapping[str, Any],
    zips: Sequence[Sequence[str]] = (),
    exclude: Sequence[Mapping[str, Any]] = (),
) -> Iterator[dict[str, Step]]:
    """Every combination of one step of each axis, the last axis turning fastest.

    Args:
        axes: values by axis.
        zips: groups of axes that advance together, value by value, instead of being crossed.
        exclude: combinations left out: those that agree with every entry of one item, whose values are
            labels or lists of labels.
    """
    for combination in itertools.product(*_columns(axes, zips)):
        found = {axis: step for part in combination for axis, step in part.items()}
        found = {axis: found[axis] for axis in axes}
        if not any(_matches(found, item) for item in exclude):
            yield found


def _columns(axes: Mapping[str, Any], zips: Sequence[Sequence[str]]) -> Iterator[list[dict[str, Step]]]:
    """One column a group of axes: the values that the group takes together."""
    done: set[str] = set()
    for axis in axes:
        group = next((tuple(zipped) for zipped in zips if axis in zipped), (axis,))
        if not done.issuperset(group):
            done.update(group)
            columns = [steps(name, axes[name]) for name in group]
            yield [dict(zip(group, values, strict=True)) for values in zip(*columns, strict=True)]


def _matches(combination: Mapping[str, Step], item: Mapping[str, Any]) -> bool:
    return all(_is_one_of(combination[axis].label, wanted) for axis, wanted in item.items())


def _is_one_of(label: Any, wanted: Any) -> bool:
    return label == wanted or (isinstance(wanted, list) and label in wanted)


def apply(run: Any, combination: Mapping[str, Step], rule: DeepenConfig | None = None) -> Any:
    """The raw run config with the settings of one combination; depth goes last, so it acts on what is set.

    Raises:
        ConfigError: a key that runs into nothing, or a depth the model cannot take.
    """
    settings = [(key, value) for step in combination.values() for key, value in step.settings.items()]
    for key, value in settings:
        if key != DEPTH:
            run = set_value(run, key, value)
    for key, value in settings:
        if key == DEPTH:
            run = deepen(run, value, rule or DeepenConfig())
    return run


def check_disjoint(axes: Mapping[str, Any], run: Any = None) -> None:
    """Refuse two axes that set one key, or one a part of what the other sets.

    Args:
        axes: values by axis.
        run: the raw base run, by which list items that are named and counted are known to be the same.

    Raises:
        ConfigError: the message names both axes and the key.
    """
    owner: dict[tuple[str, ...], str] = {}
    for axis, values in axes.items():
        own = {path(key, run): key for step in steps(axis, values) for key in step.settings}
        for parts, key in own.items():
            for other, name in owner.items():
                shorter = min(len(parts), len(other))
                if parts[:shorter] == other[:shorter]:
                    raise ConfigError(f"axes.{name} and axes.{axis} both set {key}")
        owner |= dict.fromkeys(own, axis)


def path(key: str, run: Any = None) -> tuple[str, ...]:
    """The parts of a dotted key; items of lists by their place, whether the key names or counts them."""
    parts, node = [], run
    for part in key.split("."):
        if isinstance(node, list):
            names = [item.get("name", item.get("kind")) if isinstance(item, dict) else item for item in node]
            part = str(names.index(part)) if part in names else part
            node = node[int(part)] if part.isdigit() and int(part) < len(node) else None
        else:
            node = node.get(part) if isinstance(node, dict) else None
        parts.append(part)
    return tuple(parts)


def check_axes(
    axes: Mapping[str, Any], zips: Sequence[Sequence[str]], exclude: Sequence[Mapping[str, Any]]
) -> None:
    """Refuse empty axes, values listed twice, and zips and exclusions that do not fit the axes.

    Raises:
        ValueError: the message names the axis and what is allowed.
    """
    for axis in axes:
        found = labels(axes, axis)
        if not found:
            raise ValueError(f"axes.{axis}: needs at least one value")
        twice = [label for number, label in enumerate(found) if label in found[:number]]
        if twice:
            raise ValueError(f"axes.{axis}: {twice[0]!r} is listed twice")
    _check_zips(axes, zips)
    for item in exclude:
        for axis, wanted in item.items():
            _check_label(axes, axis, wanted)


def _check_zips(axes: Mapping[str, Any], zips: Sequence[Sequence[str]]) -> None:
    seen: list[str] = []
    for group in zips:
        for axis in group:
            if axis not in axes:
                raise ValueError(f"zips: {unknown('axis', axis, axes)}")
            if axis in seen:
                raise ValueError(f"zips: axis {axis!r} is named twice")
            seen.append(axis)
        lengths = {axis: len(axes[axis]) for axis in group}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"zips: axes that advance together need as many values each, not {lengths}")


def _check_label(axes: Mapping[str, Any], axis: str, wanted: Any) -> None:
    if axis not in axes:
        raise ValueError(f"exclude: {unknown('axis', axis, axes)}")
    known = labels(axes, axis)
    for label in [wanted] if wanted in known or not isinstance(wanted, list) else wanted:
        if label not in known:
            raise ValueError(f"exclude.{axis}: {unknown('value', label, known)}")
