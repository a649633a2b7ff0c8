"""A trainer to a checkpoint and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from depthkit import config as configs
from depthkit.training import checkpoint, optim, rng, tensors
from depthkit.training.recorder import Recorder

if TYPE_CHECKING:
    from depthkit.training.trainer import Trainer


def save(trainer: Trainer, recorder: Recorder) -> None:
    """Write a checkpoint of the step reached, and the pictures of depth that go with it.

    Raises:
        OSError: it could not be written; earlier checkpoints are untouched.
    """
    recorder.pictures(trainer.step)
    with recorder.folder.writing(f"the checkpoint of step {trainer.step}"):
        checkpoint.save(
            recorder.folder.checkpoints,
            trainer.step,
            tensors.of_module(trainer.model),
            optim.state_tensors(trainer.optimizer, trainer.model),
            _state(trainer),
            trainer.config.train.keep,
        )


def restore(trainer: Trainer, folder: Path, state: dict[str, Any]) -> None:
    """Put a trainer where a verified checkpoint was written; `state` is its state.json.

    Raises:
        ValueError: another tokenizer, or tensors that do not fit the model or the optimiser.
    """
    check_tokenizer(state["tokenizer"], trainer.data.tokenizer.fingerprint, folder)
    tensors.into_module(trainer.model, tensors.load(folder / checkpoint.MODEL))
    optim.load_state_tensors(trainer.optimizer, trainer.model, tensors.load(folder / checkpoint.OPTIM))
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
