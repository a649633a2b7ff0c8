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
    streamed = pretrained.streamed
    model = pretrained.model if streamed else pretrained.model.to(device.choose(options.device))
    parts = options.subject.model_dump(exclude={"stream"})
    report = evaluate(
        Subject(model, name=pretrained.name, **parts),
        sequences,
        options.asked,
        options.seed,
        batch_tokens=options.batch_tokens,
        replay=options.replay,
        null=options.nulls,
        info=pretrained.facts,
        progress=progress,
    )
    if streamed:
        report.content["timing"]["stream"] = streamed.describe()
    return report
