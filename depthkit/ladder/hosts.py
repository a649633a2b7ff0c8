"""The plainest model in which a component acts, whatever the component is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from depthkit import config as configs
from depthkit.config import ConfigError
from depthkit.model import ModelConfig
from depthkit.model.norms.base import Norm
from depthkit.model.registries import NORMS, REGULATORS, STREAMS
from depthkit.model.regulators.base import Regulator
from depthkit.model.streams.single import SingleStream
from depthkit.registry import Registry

SURROUNDINGS: tuple[dict[str, Any], ...] = (
    {},
    {"model.placement": "post", "model.final_norm": False},
    {"model.placement": "huginn"},
    {"model.placement": "sandwich"},
    {"model.placement": "reordered"},
    {"model.norm": "none", "model.final_norm": "rms"},
    {"model.norm": "layer"},
)
"""What a host changes in a model, tried in this order."""


class Axis(NamedTuple):
    """An axis whose kinds can be tried one by one.

    `base` has the settings that all kinds have, `neutral` is the kind that is no change, `key` the place in a
    run's config, which holds a list of kinds where `listed`.
    """

    registry: Registry
    base: Any
    neutral: str | None
    key: str
    listed: bool

    def settings(self, kind: str) -> dict[str, Any]:
        """What puts `kind` into a model."""
        return {self.key: [kind] if self.listed else kind}

    def label(self, kind: str) -> str:
        """What tables call a kind: a regulator by its name, others with the name of their axis."""
        return kind if self.listed else f"{self.registry.axis}_{kind}"


AXES = {
    "regulators": Axis(REGULATORS, Regulator, None, "model.regulators", True),
    "norms": Axis(NORMS, Norm, "rms", "model.norm", False),
    "streams": Axis(STREAMS, SingleStream, "single", "model.stream", False),
}
"""The axes that regulate depth."""


class Host(NamedTuple):
    """A model with one component in it, and the same model without."""

    settings: dict[str, Any]
    model: ModelConfig
    without: ModelConfig

    @property
    def surroundings(self) -> str:
        """What the host changes besides the component, as it would be written; empty for nothing."""
        own = {"model.regulators", "model.norm", "model.stream"}
        return ", ".join(
            f"{key.partition('.')[2]}: {str(value).lower()}"
            for key, value in self.settings.items()
            if key not in own or value == "none"
        )


def host(axis: str, kind: str, run: dict[str, Any]) -> Host:
    """The first of `SURROUNDINGS` in which `kind` is neither refused nor advised against.

    If every one that is not refused draws advice, the first of these.

    Args:
        axis: a name in `AXES`.
        kind: what to try, with its default settings.
        run: raw config whose `model` is changed.

    Raises:
        ConfigError: refused everywhere; the message is that of the plain model.
    """
    found = list(_accepted(AXES[axis], kind, run))
    quiet = [h for h in found if not h.model.advice()]
    if not found:
        _model(run, AXES[axis].settings(kind))
    return (quiet or found)[0]


def tried(run: dict[str, Any]) -> dict[str, tuple[dict[str, Any], str]]:
    """Every kind of every axis by label: the settings of its host, or why no model takes it."""
    found: dict[str, tuple[dict[str, Any], str]] = {"no regulator": ({}, "")}
    for axis, about in AXES.items():
        for kind in about.registry.names():
            if kind == about.neutral:
                continue
            try:
                found[about.label(kind)] = (host(axis, kind, run).settings, "")
            except ConfigError as error:
                found[about.label(kind)] = ({}, str(error))
    return found


def _accepted(axis: Axis, kind: str, run: dict[str, Any]) -> Iterator[Host]:
    for around in SURROUNDINGS:
        own = axis.settings(kind)
        if axis.key in around:
            continue
        try:
            yield Host({**around, **own}, _model(run, {**around, **own}), _model(run, around))
        except ConfigError:
            continue


def _model(run: dict[str, Any], settings: dict[str, Any]) -> ModelConfig:
    for key, value in settings.items():
        run = configs.set_value(run, key, value)
    return configs.validate(ModelConfig, run["model"], "model")
