"""Checkpoints: written whole or not at all, verified by sha256 when read, never pickled.

checkpoints/step_00000060/{model.safetensors, optim.safetensors, state.json, manifest.json}
                          sharded runs have folders model/ and optim/ in place of the first two
checkpoints/latest        the name of the newest one; moves only after that one is complete
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from depthkit import config as configs
from depthkit import files
from depthkit.config import DOCUMENTS, Component
from depthkit.model import Transformer
from depthkit.training import contents, manifest, tensors
from depthkit.training.run import RunConfig

MODEL, OPTIM, STATE = "model.safetensors", "optim.safetensors", "state.json"
CONTENTS = (MODEL, OPTIM, STATE)


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged or belongs to something else."""


@dataclass(frozen=True)
class Loaded:
    """A model as a checkpoint holds it."""

    config: RunConfig
    """The run's resolved config, the vocabulary size filled in."""
    model: Transformer
    """In evaluation mode, on the CPU."""
    step: int
    """Optimiser steps behind it."""
    path: Path
    """The checkpoint folder."""
    tokenizer: str
    """Fingerprint of the tokenizer it was trained with."""


def load(path: str | Path, step: int | None = None) -> Loaded:
    """Load a run's latest checkpoint, the one of `step`, or the checkpoint folder `path` itself.

    Raises:
        CheckpointError: there is none, or it is damaged; the message names the file and offers an intact one.
    """
    folder = find(Path(path), step)
    state = read_state(folder)
    config = configs.validate(Component(DOCUMENTS, default="run"), state["config"], str(folder))
    model = Transformer(config.model, seed=0)
    tensors.into_module(model, contents.load(folder, MODEL))
    return Loaded(config, model.eval(), state["step"], folder, state["tokenizer"])


def save(
    root: Path,
    step: int,
    model: dict[str, Tensor],
    optim: dict[str, Tensor],
    state: dict[str, Any],
    keep: int,
) -> Path:
    """Write the checkpoint of `step` under `root`, point `latest` at it, drop all but the last `keep`.

    Raises:
        OSError: it could not be written; what was there before is untouched.
    """
    folder = root / _name(step)
    with files.replacing_folder(folder) as temporary:
        tensors.save(temporary / MODEL, model)
        tensors.save(temporary / OPTIM, optim)
        files.write_json(temporary / STATE, {**state, "step": step})
        manifest.write(temporary, CONTENTS)
    set_latest(root, step)
    _prune(root, step, keep)
    return folder


def begin(root: Path, step: int, parts: Iterable[str]) -> Path:
    """An unfinished checkpoint under `root`, with an empty folder for every part; see `complete`."""
    temporary = root / f".{_name(step)}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    for part in parts:
        (temporary / part).mkdir(parents=True)
    return temporary


def complete(temporary: Path, root: Path, step: int, state: dict[str, Any], keep: int) -> None:
    """Turn what `begin` gave, its parts written, into the checkpoint of `step`, as `save` does.

    Raises:
        OSError: it could not be written; what was there before is untouched.
    """
    files.write_json(temporary / STATE, {**state, "step": step})
    found = sorted(path for path in temporary.rglob("*") if path.is_file())
    manifest.write(temporary, [path.relative_to(temporary).as_posix() for path in found])
    files.put_in_place(temporary, root / _name(step))
    set_latest(root, step)
    _prune(root, step, keep)


def find(path: Path, step: int | None = None) -> Path:
    """The folder of the latest checkpoint under a run folder, or of the one asked for.

    Raises:
        CheckpointError: no such checkpoint; the message lists the steps there are.
    """
    if (path / manifest.NAME).exists() and step is None:
        return path
    root = root_of(path)
    present = steps(root)
    wanted = latest(root) if step is None else step
    if wanted not in present:
        what = "no checkpoint" if wanted is None else f"no checkpoint of step {wanted}"
        held = f"; there are steps {', '.join(map(str, present))}" if present else ""
        raise CheckpointError(f"{path}: {what}{held}")
    return root / _name(wanted)


def root_of(run: Path) -> Path:
    """The folder that holds a run's checkpoints."""
    return run / "checkpoints"


def folder_of(run: Path, step: int) -> Path:
    """Where a run keeps the checkpoint of a step."""
    return root_of(run) / _name(step)


def steps(root: Path) -> list[int]:
    """Steps of all checkpoints, ascending."""
    return sorted(int(path.name.removeprefix("step_")) for path in root.glob("step_*") if path.is_dir())


def latest(root: Path) -> int | None:
    """The step `latest` names; without that file the newest there is; None when there is none.

    Raises:
        CheckpointError: the file holds something else.
    """
    pointer = root / "latest"
    if pointer.exists():
        name = pointer.read_text(encoding="utf-8").strip()
        if not name.removeprefix("step_").isdigit():
            raise CheckpointError(f"{pointer}: {name!r} is not the name of a checkpoint")
        return int(name.removeprefix("step_"))
    return max(steps(root), default=None)


def set_latest(root: Path, step: int) -> None:
    """Make the checkpoint of `step` the one that a resumed run starts from."""
    files.write_text(root / "latest", _name(step) + "\n")


def read_state(folder: Path) -> dict[str, Any]:
    """Verify a checkpoint and return its state.json.

    Raises:
        CheckpointError: a file is missing or differs from the manifest.
    """
    damage = manifest.damage(folder, _required(folder))
    if damage is None:
        return json.loads((folder / STATE).read_text(encoding="utf-8"))
    root = folder.parent
    places = {step: root / _name(step) for step in steps(root)}
    others = [step for step, place in places.items() if manifest.damage(place, _required(place)) is None]
    if not others:
        raise CheckpointError(f"{damage}, and no other checkpoint of this run is intact")
    raise CheckpointError(
        f"{damage}. The checkpoint of step {others[-1]} is intact: continue from it with --resume-from "
        f"{others[-1]}, or load it with load({str(root.parent)!r}, step={others[-1]})"
    )


def _required(folder: Path) -> Iterable[str]:
    """The files of a checkpoint: of a sharded one, those that its manifest lists."""
    listed = manifest.listed(folder)
    shards = Path(MODEL).stem + "/"
    return listed if any(name.startswith(shards) for name in listed) else CONTENTS


def clean(root: Path) -> None:
    """Remove what writers that were killed have left behind."""
    for leftover in root.glob(".*"):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def _prune(root: Path, step: int, keep: int) -> None:
    # Steps past the one just written belong to a future that was given up; they are overwritten in time.
    for old in [present for present in steps(root) if present <= step][:-keep]:
        aside = root / f".{_name(old)}.old"
        os.replace(root / _name(old), aside)
        shutil.rmtree(aside)


def _name(step: int) -> str:
    return f"step_{step:08d}"
