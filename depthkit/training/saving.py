"""A trainer to a checkpoint and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from depthkit import config as configs
from depthkit.training import checkpoint, contents, optim, rng, tensors
from depthkit.training.parallel.quiet import QuietRecorder
from depthkit.training.parallel.writing import Snapshot
from depthkit.training.recorder import Recorder

if TYPE_CHECKING:
    from depthkit.training.trainer import Trainer


def save(trainer: Trainer, recorder: Recorder | QuietRecorder) -> None:
    """Write, or begin to write, a checkpoint of the step reached, and the pictures of depth that go with it.

    Raises:
        OSError: it could not be written; earlier checkpoints are untouched.
    """
    recorder.pictures(trainer.step)
    with recorder.folder.writing(f"the checkpoint of step {trainer.step}"):
        parts = {part: _stored(trainer, held) for part, held in _parts(trainer).items()}
        keep = trainer.config.train.keep
        root = recorder.folder.checkpoints
        trainer.parallel.checkpoints.begin(Snapshot(root, trainer.step, parts, _state(trainer), keep))


def finish(trainer: Trainer, recorder: Recorder | QuietRecorder) -> None:
    """Wait until the last checkpoint that was begun is complete.

    Raises:
        OSError: it could not be written; earlier checkpoints are untouched.
    """
    with recorder.folder.writing("the last checkpoint"):
        trainer.parallel.checkpoints.finish()


def restore(trainer: Trainer, folder: Path, state: dict[str, Any]) -> None:
    """Put a trainer where a verified checkpoint was written; `state` is its state.json.

    Raises:
        ValueError: another tokenizer, or tensors that do not fit the model or the optimiser.
    """
    check_tokenizer(state["tokenizer"], trainer.data.tokenizer.fingerprint, folder)
    model, optimizer = trainer.model, trainer.optimizer
    tensors.into_module(model, _read(trainer, folder, checkpoint.MODEL))
    optim.load_state_tensors(optimizer, model, _read(trainer, folder, checkpoint.OPTIM))
    trainer.step, trainer.tokens, trainer.bad_steps = state["step"], state["tokens"], state["bad_steps"]
    trainer.last_loss, trainer.position = state["last_loss"], state["data"]
    rng.restore(state["rng"])


def check_tokenizer(trained: str, given: str, folder: Path) -> None:
    """Refuse a tokenizer that a checkpoint was not trained with; both are fingerprints.

    Raises:
        ValueError: they differ.
    """
    if trained != given:
        raise ValueError(
            f"data.tokenizer: {folder} was trained with another tokenizer "
            f"(fingerprint {trained[:12]}, this one has {given[:12]}); its token ids mean other text"
        )


def _state(trainer: Trainer) -> dict[str, Any]:
    return {
        "tokens": trainer.tokens,
        "bad_steps": trainer.bad_steps,
        "last_loss": trainer.last_loss,
        "schedule": {"step": trainer.step, "total": trainer.total},
        "data": trainer.data.state(trainer.step * trainer.config.train.accumulation),
        "tokenizer": trainer.data.tokenizer.fingerprint,
        "rng": rng.state(),
        "threads": torch.get_num_threads(),
        "config": configs.to_dict(trainer.config),
    }


def _parts(trainer: Trainer) -> dict[str, dict[str, Tensor]]:
    """What this rank has to save."""
    return {
        checkpoint.MODEL: tensors.of_module(trainer.model),
        checkpoint.OPTIM: optim.state_tensors(trainer.optimizer, trainer.model),
    }


def _stored(trainer: Trainer, held: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: trainer.parallel.stored(name, tensor) for name, tensor in held.items()}


def _read(trainer: Trainer, folder: Path, part: str) -> dict[str, Tensor]:
    """What this rank is to have of a checkpoint; moments are laid out as their parameters are."""
    parallel = trainer.parallel
    layouts = _stored(trainer, tensors.of_module(trainer.model))
    found = contents.load(folder, part, lambda name: layouts.get(name, layouts.get(name.rpartition("/")[0])))
    return {name: parallel.held(name, tensor) for name, tensor in found.items()}
