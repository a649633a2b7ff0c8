"""`python -m depthkit fold`: a checkpoint whose gains are folded into its weights."""

from __future__ import annotations

from pathlib import Path

from depthkit import config as configs
from depthkit.model import fold
from depthkit.training import checkpoint, tensors


def fold_run(source: Path, out: Path) -> Path:
    """Write a checkpoint under `out` that computes what `source` does, without regulators.

    It holds no optimiser state, so it can be loaded and evaluated but not trained further.

    Raises:
        ValueError: `out` already holds checkpoints, `source` has none, or its gains cannot be folded.
    """
    if checkpoint.steps(checkpoint.root_of(out)):
        raise ValueError(f"{out}: already holds checkpoints; give another folder")
    loaded = checkpoint.load(source)
    folded = fold(loaded.model)
    document = configs.to_dict(loaded.config.model_copy(update={"model": folded.config}))
    state = {**checkpoint.read_state(loaded.path), "config": document}
    root = checkpoint.root_of(out)
    return checkpoint.save(root, loaded.step, tensors.of_module(folded), {}, state, keep=1)
