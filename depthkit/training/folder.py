"""A run's folder: what lies where, and who may write into it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from depthkit import config as configs
from depthkit import files
from depthkit.model import Plan
from depthkit.registry import Spec
from depthkit.training import checkpoint, environment, metrics


class RunFolder:
    """config.yaml, plan.json, environment.json, metrics.jsonl, tb/ and checkpoints/ of one run."""

    def __init__(self, path: Path):
        self.path = path
        self.config = path / "config.yaml"
        self.metrics = path / "metrics.jsonl"
        self.tensorboard = path / "tb"
        self.checkpoints = checkpoint.root_of(path)

    def claim(self, config: Spec, resume: bool) -> None:
        """Make sure that the folder is free, or holds this very run and is to be resumed.

        Raises:
            ValueError: it holds a run with another config, or this run and `resume` is false.
        """
        if not self.config.exists():
            return
        changes = differences(self._held(type(config)), configs.identity(config))
        if changes:
            listed = "\n  ".join(changes)
            raise ValueError(
                f"{self.path} holds a run with another config; choose another --run-dir\n  {listed}"
            )
        if not resume:
            raise ValueError(
                f"{self.path} already holds this run ({self.standing()}): continue it with --resume, "
                "or start another with --run-dir"
            )

    def _held(self, schema: type[Spec]) -> Any:
        """The folder's config, with defaults for settings that came after it was written."""
        raw = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        try:
            return configs.identity(configs.validate(schema, raw, str(self.config)))
        except configs.ConfigError:  # another kind of document, or settings that are gone
            return raw

    def standing(self) -> str:
        """How far the run is, in words."""
        if self.end() is not None:
            return "finished"
        step = checkpoint.latest(self.checkpoints)
        return "no checkpoint yet" if step is None else f"checkpoint at step {step}"

    def end(self) -> metrics.Row | None:
        """The summary of a finished run, or None."""
        ends = metrics.read(self.metrics, "end")
        return ends[-1] if ends else None

    def clean(self) -> None:
        """Remove what writers that were killed have left behind."""
        for leftover in self.path.glob(".*.tmp*"):
            leftover.unlink()
        checkpoint.clean(self.checkpoints)

    def describe(self, config: Spec, plan: Plan, facts: dict[str, Any]) -> None:
        """Write config.yaml, plan.json and environment.json; `facts` are added to the environment."""
        rows = [
            {"visit": v.index, "key": str(v.key), "layer": v.layer, "block": v.block} for v in plan.visits
        ]
        files.write_json(self.path / "plan.json", rows)
        files.write_json(self.path / "environment.json", {**environment.describe(), **facts})
        files.write_text(self.config, configs.to_yaml(config))

    @contextlib.contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """Turn a failed write inside the block into one message that says what is safe and how to go on.

        Raises:
            OSError: the failure, with that message.
        """
        try:
            yield
        except OSError as error:
            step = checkpoint.latest(self.checkpoints)
            safe = (
                "no checkpoint was written yet"
                if step is None
                else f"the checkpoint of step {step} is intact"
            )
            raise OSError(
                f"{what} of {self.path} could not be written: {error.strerror or error}; "
                f"{safe}, continue with --resume once the cause is mended"
            ) from error


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """One line for every dotted key whose value differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        found = [differences(old.get(k), new.get(k), f"{path}.{k}" if path else str(k)) for k in keys]
        return [line for lines in found for line in lines]
    return [] if old == new else [f"{path}: {old!r} there, {new!r} here"]
