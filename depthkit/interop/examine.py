"""From a pretrained model to its utilization report."""

from __future__ import annotations

from collections.abc import Callable

from depthkit.interop.hf import Pretrained
from depthkit.training import device
from depthkit.utilization import Report, Sequences, Subject, evaluate
from depthkit.utilization.options import EvalOptions


def examine(
    pretrained: Pretrained,
    sequences: Sequences,
    options: EvalOptions,
    progress: Callable[[float, float], None] = lambda done, total: None,
) -> Report:
    """Evaluate a pretrained model on `sequences`; `progress` gets (layer evaluations done, in all).

    Raises:
        ValueError: a model whose structure is not found, or one that cannot be replayed.
    """
    model = pretrained.model.to(device.choose(options.device))
    subject = Subject(model, name=pretrained.name, **options.subject.model_dump())
    return evaluate(
        subject,
        sequences,
        options.asked,
        options.seed,
        batch_tokens=options.batch_tokens,
        null=options.nulls,
        info=pretrained.facts,
        progress=progress,
    )
