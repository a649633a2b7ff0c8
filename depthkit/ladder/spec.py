"""The `kind: ladder` document: one base run, axes, fairness, and what to compare."""

from __future__ import annotations

import argparse
import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field, model_validator

from depthkit.config import DOCUMENTS, Component, ConfigError
from depthkit.ladder.axes import (
    DEPTH,
    Values,
    apply,
    check_axes,
    check_disjoint,
    grid,
    labels,
    short_name,
)
from depthkit.ladder.deepen import DeepenConfig
from depthkit.ladder.fairness import FairnessConfig, Fitter, check_comparable
from depthkit.ladder.registries import LAUNCHERS
from depthkit.registry import Spec, unknown
from depthkit.utilization.options import EvalOptions

LONGEST_NAME = 120


@dataclass(frozen=True)
class Rung:
    """One run of a ladder: its name, where it stands on every axis, and its resolved config."""

    name: str
    place: dict[str, Any]
    config: Any


class ComparisonConfig(Spec):
    """One axis along which rungs are compared, everything else equal, paired by the replicate axis."""

    axis: str
    """The axis whose values are compared."""
    baseline: Any
    """The value the others are held against."""


@DOCUMENTS.register("ladder")
class Ladder:
    """Many runs along axes, each evaluated, and one page that answers a question."""

    class Config(Spec):
        """A complete ladder."""

        run: dict[str, Any]
        """The base run; `extends` works here too."""
        axes: dict[str, Values] = Field(min_length=1)
        """By name: a list of values for the key the axis is named after (`seed: [0, 1, 2]`; `depth` deepens
        the model), or named variants with their settings (`method: {lns: {model.regulators: [lns]}}`)."""
        zips: list[list[str]] = []
        """Groups of axes that advance together, value by value, instead of being crossed."""
        exclude: list[dict[str, Any]] = []
        """Combinations to leave out: those that agree with all of one item, `{depth: 512, seed: [1, 2]}`."""
        deepen: DeepenConfig = DeepenConfig()
        """What the axis `depth` does to the model."""
        fairness: FairnessConfig = Field(default_factory=lambda: FairnessConfig.model_validate({}))
        """What rungs must have in common, and how they are given it."""
        replicate: str = "seed"
        """The axis that repeats a run: its values are samples, intervals run over them."""
        compare: list[ComparisonConfig] = []
        """Comparisons the summary puts into words; the first one's axis gives lines and the ranking."""
        evaluate: EvalOptions = Field(default_factory=lambda: EvalOptions.model_validate({"html": False}))
        """How every rung is evaluated."""
        retries: int = Field(1, ge=0)
        """How often a rung that failed is tried again from its last checkpoint before it is marked."""
        launch: Annotated[Any, Component(LAUNCHERS, default="local")] = Field("local", validate_default=True)
        """Where the rungs run: `local` processes, `slurm`, `inline`."""

        @model_validator(mode="after")
        def _fits_together(self) -> Ladder.Config:
            check_axes(self.axes, self.zips, self.exclude)
            for axis in self.fairness.learning_rate.axes():
                if axis in self.axes:
                    raise ValueError(
                        f"axes.{axis} and fairness.learning_rate both set {axis}; drop one of them"
                    )
            check_disjoint(self.all_axes, {"kind": "run", **self.run})
            self._check_depth()
            if self.replicate not in self.axes:
                raise ValueError(f"replicate: {unknown('axis', self.replicate, self.axes)}")
            for axis in self.fairness.within:
                if axis not in self.axes:
                    raise ValueError(f"fairness.within: {unknown('axis', axis, self.axes)}")
            for comparison in self.compare:
                self._check_comparison(comparison)
            return self

        def _check_depth(self) -> None:
            """`depth` sets what an axis over the same counts would set."""
            pattern = rf"model\.segments\.[^.]+\.{self.deepen.by}"
            for axis in self.axes:
                if DEPTH in self.axes and re.fullmatch(pattern, axis):
                    raise ValueError(f"axes.{DEPTH} and axes.{axis} both set {axis}")

        def _check_comparison(self, comparison: ComparisonConfig) -> None:
            if comparison.axis not in self.axes:
                raise ValueError(f"compare: {unknown('axis', comparison.axis, self.axes)}")
            known = labels(self.axes, comparison.axis)
            if comparison.baseline not in known:
                raise ValueError(
                    f"compare.{comparison.axis}.baseline: {unknown('value', comparison.baseline, known)}"
                )

        @property
        def all_axes(self) -> dict[str, Any]:
            """The axes, and those that the learning-rate treatment adds, before the replicates."""
            added = self.fairness.learning_rate.axes()
            last = {self.replicate: self.axes[self.replicate]} if self.replicate in self.axes else {}
            first = {axis: values for axis, values in self.axes.items() if axis not in last}
            return {**first, **added, **last} if added else dict(self.axes)

        def rungs(self) -> list[Rung]:
            """Every rung with its validated config.

            Raises:
                ConfigError: a rung that cannot be built, named; rungs that are not comparable; none at all.
            """
            return list(self.all_rungs)

        @cached_property
        def all_rungs(self) -> list[Rung]:
            """What `rungs` gives, worked out once."""
            base = {"kind": "run", **self.run}
            fitter, found = Fitter(self.fairness, base), []
            for combination in grid(self.all_axes, self.zips, self.exclude):
                place = {axis: step.label for axis, step in combination.items()}
                name = rung_name(place)
                try:
                    raw = apply(base, combination, self.deepen)
                except ConfigError as error:
                    raise ConfigError(f"rung {name}: {error}") from None
                found.append(Rung(name, place, fitter.run(raw, combination, name)))
            _check_names(found)
            named = [(rung.name, rung.config) for rung in found]
            places = [rung.place for rung in found]
            check_comparable(self.fairness, named, places, fitter.vocabularies, self.evaluate)
            return found

        def advice(self) -> list[str]:
            """Settings without effect in any rung, each sentence once."""
            return list(dict.fromkeys(line for rung in self.rungs() for line in rung.config.advice()))

        def fingerprint(self) -> str:
            """Eight hex digits that depend on everything but where the rungs run."""
            text = self.model_dump_json(exclude={"launch", "retries"})
            return hashlib.sha256(text.encode()).hexdigest()[:8]

        def execute(self, arguments: argparse.Namespace) -> int:
            """Do what the command line asks for; `arguments` are those of train.py. Returns the exit code.

            0: every rung finished. 1: some rung failed; the others and the summary are complete. 130: stopped
            by Ctrl-C or SIGTERM; the same command goes on from the rungs' checkpoints.
            """
            from depthkit.ladder.command import execute

            return execute(self, arguments)


LadderConfig = Ladder.Config


def rung_name(place: dict[str, Any]) -> str:
    """A folder name from a place on the axes: `method-lns_depth-32_embedding_std-0.02_seed-1`.

    A long one ends in eight digits of its hash instead.
    """
    parts = (f"{short_name(axis)}-{label}" for axis, label in place.items())
    whole = "_".join(parts)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", whole)
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def _check_names(rungs: list[Rung]) -> None:
    if not rungs:
        raise ConfigError("exclude: leaves no rung")
    seen: dict[str, Rung] = {}
    for rung in rungs:
        other = seen.setdefault(rung.name, rung)
        if other is not rung:
            raise ConfigError(
                f"axes: {other.place} and {rung.place} would share the folder {rung.name}; name one otherwise"
            )
