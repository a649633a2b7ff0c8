"""A model that was not trained here as a run folder at step 0: to evaluate, to continue, or to start from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from depthkit import config as configs
from depthkit import files
from depthkit.data import store
from depthkit.model import Transformer
from depthkit.model.init import stream_seed
from depthkit.training import checkpoint, rng, tensors
from depthkit.training.folder import RunFolder
from depthkit.training.run import RunConfig

ORIGIN = "origin.json"
TRAIN = {"steps": 1000, "batch_size": 8, "lr": 1e-4}
"""How a pretrained model is trained unless the user says otherwise."""


def train_settings(out: Path, **settings: Any) -> dict[str, Any]:
    """The `train:` section of a run that starts from the checkpoint of step 0 under `out`."""
    return {**TRAIN, **settings, "init_from": str(checkpoint.folder_of(out, 0))}


def validated(raw: dict[str, Any], overrides: Sequence[str], origin: str) -> RunConfig:
    """The run config of a plain mapping and `key=value` overrides.

    Raises:
        ConfigError: something in it is wrong.
    """
    return configs.parse(raw, overrides, origin)


def check_free(out: Path) -> None:
    """Refuse a folder that already holds a run or another model.

    Raises:
        ValueError: it does.
    """
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise ValueError(f"{out}: already holds something; give another folder")


def write(out: Path, config: RunConfig, model: Transformer, origin: dict[str, Any]) -> Path:
    """Write config, plan and the checkpoint of step 0.

    The checkpoint can be resumed: it stands where a run of this config with these weights would start.

    Args:
        out: the folder.
        config: the run; its model has the shapes of `model`.
        model: the weights.
        origin: where they are from, kept beside the checkpoint.

    Returns:
        The checkpoint folder.

    Raises:
        ValueError: a tokenizer that cannot be had.
        OSError: something could not be written.
    """
    folder = RunFolder(out)
    state = {
        "tokens": 0,
        "bad_steps": 0,
        "last_loss": None,
        "schedule": {"step": 0, "total": config.total_steps},
        "data": None,
        "tokenizer": tokenizer_of(config).fingerprint,
        "rng": _fresh_rng(config.seed),
        "threads": torch.get_num_threads(),
        "config": configs.to_dict(config),
    }
    folder.describe(config, model.plan, {})
    files.write_json(out / ORIGIN, origin)
    return checkpoint.save(folder.checkpoints, 0, tensors.of_module(model), {}, state, keep=1)


def origin_of(run: Path) -> dict[str, Any]:
    """Where a run's first weights are from; empty when from an initialisation."""
    file = run / ORIGIN
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def tokenizer_of(config: RunConfig) -> Any:
    """The run's tokenizer; text is read only where the tokenizer learns from it."""
    data = config.data
    folder = Path(data.cache).expanduser() if data.cache else store.default_folder()
    return data.tokenizer.component(data.tokenizer, data.corpus.component(data.corpus), folder)


def _fresh_rng(seed: int) -> dict[str, Any]:
    """The state of the generators where a new run starts."""
    with torch.random.fork_rng(list(range(torch.cuda.device_count()))):
        torch.manual_seed(stream_seed(seed, "global"))
        return rng.state()
