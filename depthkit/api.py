"""The three calls most programs need; re-exported lazily by `depthkit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from depthkit import config as configs
from depthkit.model import ModelConfig, Transformer


def build(config: str | Path | dict[str, Any] | ModelConfig, *overrides: str, seed: int = 0) -> Transformer:
    """A freshly initialised model.

    Args:
        config: a config file, a `ModelConfig`, or the plain mapping that stands under `model:`.
        overrides: `model.dim=64` strings, for a config file.
        seed: where the parameters are drawn from; a config file's own `seed` wins over it.

    Raises:
        ValueError: a config that does not validate, or one without `vocab_size` and without a tokenizer.
    """
    if isinstance(config, ModelConfig):
        return Transformer(config, seed)
    if isinstance(config, dict):
        return Transformer(configs.validate(ModelConfig, config, "model"), seed)
    from depthkit.training.run import resolve_model

    run = configs.load(config, overrides)
    return Transformer(resolve_model(run), run.seed)


def load(run_or_checkpoint: str | Path, step: int | None = None) -> Transformer:
    """A trained model from a run folder (its latest checkpoint, or `step`) or from a checkpoint folder.

    Raises:
        ValueError: no checkpoint there, or one that fails its checksums.
    """
    from depthkit.training.checkpoint import load as load_checkpoint

    return load_checkpoint(Path(run_or_checkpoint), step).model
