"""From a pretrained model to its utilization report."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from depthkit.interop.hf import Pretrained
from depthkit.training import device
from depthkit.training.parallel.ranks import ALONE, Ranks
from depthkit.utilization import Report, Sequences, Subject, evaluate
from depthkit.utilization.evaluation import NO_TASKS
from depthkit.utilization.options import EvalOptions
from depthkit.utilization.tasks.items import Items


def examine(
    pretrained: Pretrained,
    sequences: Sequences,
    options: EvalOptions,
    progress: Callable[[float, float], None] = lambda done, total: None,
    tasks: Mapping[str, Items] = NO_TASKS,
    ranks: Ranks = ALONE,
) -> Report:
    """Evaluate a pretrained model on `sequences`, which `ranks` share.

    `progress` gets (layer evaluations done, in all).

    Raises:
        ValueError: a model whose structure is not found, or one that cannot be replayed.
    """
    streamed = pretrained.streamed
    report = evaluate(
        subject_of(pretrained, options),
        sequences,
        options.asked,
        options.seed,
        batch_tokens=options.batch_tokens,
        replay=options.replay,
        null=options.nulls,
        tasks=tasks,
        ranks=ranks,
        info=pretrained.facts,
        progress=progress,
    )
    if streamed:
        report.content["timing"]["stream"] = streamed.describe()
    return report


def subject_of(pretrained: Pretrained, options: EvalOptions) -> Subject:
    """The model as the probes see it, on the device that was asked for.

    Raises:
        ValueError: its structure is not found.
    """
    streamed = pretrained.streamed
    model = pretrained.model if streamed else pretrained.model.to(device.choose(options.device))
    return Subject(model, name=pretrained.name, **options.subject.model_dump(exclude={"stream"}))
