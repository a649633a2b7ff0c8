"""The `kind: init_study` document: one base run, methods, depths, seeds, and what papers claim."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from depthkit import config as configs
from depthkit.config import DOCUMENTS, ConfigError
from depthkit.ladder.axes import DEPTH, Step, apply
from depthkit.ladder.init_study.metrics import METRICS
from depthkit.ladder.spec import Rung, rung_name
from depthkit.registry import Spec, unknown

AxisName = Literal["regulators", "norms", "streams"]


class ClaimConfig(Spec):
    """Something a paper says, in a form that numbers can answer."""

    says: str
    """The claim in words, as the start of a sentence."""
    source: str
    """Where it is said."""
    method: str
    """The method it is about."""
    metric: str
    """The metric it is about."""
    expect: Literal["lower", "higher", "near"]
    """Which side of `than` the metric is claimed to be on."""
    than: float | int | str
    """A number, or the name of a method with which it is paired by seed."""
    within: float = Field(0.0, ge=0)
    """With `near`: the largest difference that counts as near."""

    @model_validator(mode="after")
    def _known_metric(self) -> ClaimConfig:
        if self.metric not in METRICS:
            raise ValueError(unknown("metric", self.metric, METRICS))
        return self


class DeepestConfig(Spec):
    """A depth that only some methods are measured at, because it costs as much as all the others."""

    depth: int = Field(ge=1)
    """Visits."""
    methods: list[str]
    """Names of methods."""


@DOCUMENTS.register("init_study")
class InitStudy:
    """Depth at initialisation, without training: how the stream grows, turns and passes gradients back."""

    class Config(Spec):
        """A complete study."""

        run: dict[str, Any]
        """The base run, of which no step is taken; its batch size, sequence length and data make the batch.
        `extends` works here too."""
        methods: dict[str, dict[str, Any]] = Field(min_length=1)
        """Named variants, each with its settings, as on an axis of a ladder."""
        every: list[AxisName] = []
        """Axes of which every kind that no method is named after is added, at its defaults, in the plainest
        model that takes it."""
        depths: list[int] = Field(min_length=1)
        """Visits, measured for every method."""
        deepest: DeepestConfig | None = None
        """One more depth for some methods."""
        seeds: list[int] = Field(min_length=1)
        """Replicates: every parameter and the batch are drawn anew."""
        probes: int = Field(1, ge=1)
        """Random vectors a Jacobian is estimated with."""
        jacobians: int = Field(12, ge=2)
        """Visits whose Jacobian is measured, evenly spaced in the logarithm of depth; more cost time."""
        workers: int | None = Field(None, ge=1)
        """Processes at a time; null is one a core."""
        claims: list[ClaimConfig] = []
        """What the summary answers, each at the deepest place where all it needs was measured."""

        @model_validator(mode="after")
        def _names(self) -> InitStudy.Config:
            known = self.variants()
            named = [c.method for c in self.claims]
            named += [c.than for c in self.claims if isinstance(c.than, str)]
            named += self.deepest.methods if self.deepest else []
            for name in named:
                if name not in known:
                    raise ValueError(unknown("method", name, known))
            return self

        def variants(self) -> dict[str, dict[str, Any]]:
            """Settings of every method: the named ones, then the kinds of the axes in `every`."""
            return {**self.methods, **{name: found for name, found, reason in self.added if not reason}}

        def refused(self) -> dict[str, str]:
            """Kinds of the axes in `every` that no model here takes, with the reason."""
            return {name: reason for name, _, reason in self.added if reason}

        @cached_property
        def added(self) -> list[tuple[str, dict[str, Any], str]]:
            """Every kind of the axes in `every`: its name, its settings, and why it is refused if it is."""
            return list(self._all_kinds())

        def _all_kinds(self) -> Iterator[tuple[str, dict[str, Any], str]]:
            from depthkit.ladder.hosts import AXES, host

            for axis in self.every:
                for kind in AXES[axis].registry.names():
                    label = AXES[axis].label(kind)
                    if label in self.methods or kind == AXES[axis].neutral:
                        continue
                    try:
                        yield label, host(axis, kind, self.run).settings, ""
                    except ConfigError as error:
                        yield label, {}, str(error)

        def rungs(self) -> list[Rung]:
            """Every model of the study as the run it would be, shallow ones first.

            Raises:
                ConfigError: one that cannot be built; the message names it.
            """
            return list(self.all_rungs)

        @cached_property
        def all_rungs(self) -> list[Rung]:
            """What `rungs` gives, worked out once."""
            variants = self.variants()
            places = [(name, depth) for depth in self.depths for name in variants]
            if self.deepest is not None:
                places += [(name, self.deepest.depth) for name in self.deepest.methods]
            return [self._rung(n, d, s, variants[n]) for n, d in dict.fromkeys(places) for s in self.seeds]

        def _rung(self, name: str, depth: int, seed: int, settings: dict[str, Any]) -> Rung:
            place = {"method": name, DEPTH: depth, "seed": seed}
            steps = {
                "method": Step(name, settings),
                DEPTH: Step(depth, {DEPTH: depth}),
                "seed": Step(seed, {"seed": seed}),
            }
            raw = apply({"kind": "run", **self.run}, steps)
            return Rung(rung_name(place), place, configs.parse(raw, origin=rung_name(place)))

        def num_workers(self) -> int:
            """Processes at a time."""
            return self.workers or os.cpu_count() or 1

        def advice(self) -> list[str]:
            """Settings without effect in any model, each sentence once."""
            return list(dict.fromkeys(line for rung in self.rungs() for line in rung.config.model.advice()))

        def execute(self, arguments: argparse.Namespace) -> int:
            """Run the study; `arguments` are those of train.py, or of `python -m depthkit init`.

            Returns the exit code: 0; 1 when some model could not be measured (the others are complete); 130
            after Ctrl-C.
            """
            from depthkit.ladder.init_study.study import plan, study

            if getattr(arguments, "dry_run", False):
                return plan(self)
            name = f"{arguments.config.stem}-{configs.fingerprint(self)}"
            folder = arguments.run_dir or Path("runs") / name
            try:
                return study(self, folder, arguments.config, getattr(arguments, "page", None))
            except KeyboardInterrupt:
                print("stopped; nothing is written")
                return 130


StudyConfig = InitStudy.Config
