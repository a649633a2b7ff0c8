"""The `kind: ladder` document: one base run, axes, and what to compare."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from depthkit import config as configs
from depthkit.config import DOCUMENTS
from depthkit.ladder.axes import apply, check_disjoint, grid, short_name, steps
from depthkit.registry import Spec, unknown
from depthkit.utilization.options import EvalOptions


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
        axes: dict[str, list[Any] | dict[str, dict[str, Any]]] = Field(min_length=1)
        """By name: a list of values for the key the axis is named after (`seed: [0, 1, 2]`; `depth` deepens
        the model), or named variants with their settings (`method: {lns: {model.regulators: [lns]}}`)."""
        replicate: str = "seed"
        """The axis that repeats a run: its values are samples, intervals run over them."""
        compare: list[ComparisonConfig] = []
        """Comparisons the summary puts into words."""
        evaluate: EvalOptions = Field(default_factory=lambda: EvalOptions.model_validate({"html": False}))
        """How every rung is evaluated."""
        workers: int | None = Field(None, ge=1)
        """Processes at a time; null is one a core."""

        @model_validator(mode="after")
        def _axes_and_rungs(self) -> Ladder.Config:
            check_disjoint(self.axes)
            for axis, values in self.axes.items():
                if not values:
                    raise ValueError(f"axes.{axis}: needs at least one value")
            if self.replicate not in self.axes:
                raise ValueError(f"replicate: {unknown('axis', self.replicate, self.axes)}")
            for comparison in self.compare:
                self._check_comparison(comparison)
            return self

        def _check_comparison(self, comparison: ComparisonConfig) -> None:
            if comparison.axis not in self.axes:
                raise ValueError(f"compare: {unknown('axis', comparison.axis, self.axes)}")
            labels = [step.label for step in steps(comparison.axis, self.axes[comparison.axis])]
            if comparison.baseline not in labels:
                raise ValueError(
                    f"compare.{comparison.axis}.baseline: {unknown('value', comparison.baseline, labels)}"
                )

        def rungs(self) -> list[Rung]:
            """Every rung with its validated config.

            Raises:
                ConfigError: a rung that cannot be built; the message names it.
            """
            found = []
            for combination in grid(self.axes):
                place = {axis: step.label for axis, step in combination.items()}
                name = rung_name(place)
                raw = apply({"kind": "run", **self.run}, combination)
                found.append(Rung(name, place, configs.parse(raw, origin=f"rung {name}")))
            return found

        def num_workers(self) -> int:
            """Processes at a time."""
            return self.workers or os.cpu_count() or 1

        def advice(self) -> list[str]:
            """Settings without effect in any rung, each sentence once."""
            return list(dict.fromkeys(line for rung in self.rungs() for line in rung.config.advice()))

        def execute(self, arguments: argparse.Namespace) -> int:
            """Do what the command line asks for; `arguments` are those of train.py. Returns the exit code.

            0: every rung finished. 1: some rung failed; the others and the summary are complete. 130: stopped
            by Ctrl-C or SIGTERM; the same command goes on from the rungs' checkpoints.
            """
            from depthkit.ladder.launch import climb
            from depthkit.ladder.plan import print_plan

            if arguments.dry_run:
                print_plan(self)
                return 0
            name = f"{arguments.config.stem}-{configs.fingerprint(self)}"
            try:
                return climb(self, arguments.run_dir or Path("runs") / name)
            except KeyboardInterrupt:
                print("stopped; the same command goes on where the rungs stand")
                return 130


LadderConfig = Ladder.Config


def rung_name(place: dict[str, Any]) -> str:
    """A folder name from a place on the axes: `method-lns_depth-32_embedding_std-0.02_seed-1`."""
    parts = (f"{short_name(axis)}-{label}" for axis, label in place.items())
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", "_".join(parts))
