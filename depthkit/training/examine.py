"""From a checkpoint to its utilization report, on the run's own held-out text."""

from __future__ import annotations

from collections.abc import Callable

import torch

from depthkit.data import open_data
from depthkit.training import device
from depthkit.training.checkpoint import Loaded
from depthkit.utilization import Report, Sequences, Subject, evaluate
from depthkit.utilization.options import EvalOptions
from depthkit.utilization.sequences import draw


def held_out(loaded: Loaded, options: EvalOptions) -> Sequences:
    """A seeded draw of the run's held-out windows.

    Raises:
        ValueError: the data now comes with another tokenizer than the checkpoint was trained with.
    """
    settings = loaded.config.data
    if options.sequence_length is not None:
        settings = settings.model_copy(update={"sequence_length": options.sequence_length})
    data = open_data(settings, loaded.config.seed)
    if data.tokenizer.fingerprint != loaded.tokenizer:
        raise ValueError(f"{loaded.path}: trained with another tokenizer than data.tokenizer now gives")
    pool = list(data.validation(64, max_tokens=64 * options.sequences * settings.sequence_length))
    documents = [batch.documents for batch in pool if batch.documents is not None]
    ids, targets = (torch.cat([getattr(batch, name) for batch in pool]) for name in ("ids", "targets"))
    found = Sequences.of_targets(ids, targets, torch.cat(documents) if documents else None)
    return draw(found, options.sequences, options.seed)


def examine(
    loaded: Loaded,
    sequences: Sequences,
    options: EvalOptions,
    progress: Callable[[float, float], None] = lambda done, total: None,
) -> Report:
    """Evaluate one checkpoint on `sequences`; `progress` gets (layer evaluations done, in all)."""
    model = loaded.model.to(device.choose(options.device))
    return evaluate(
        Subject(model, name=loaded.path.resolve().parents[1].name),
        sequences,
        options.preset if options.probes is None else options.probes,
        options.seed,
        batch_tokens=options.batch_tokens,
        info={"path": str(loaded.path), "step": loaded.step, "tokenizer": loaded.tokenizer},
        progress=progress,
    )
