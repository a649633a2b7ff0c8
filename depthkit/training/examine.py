"""From a checkpoint to its utilization report, on the run's own held-out text."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from depthkit.data import Batch, open_data
from depthkit.training import device
from depthkit.training.checkpoint import Loaded
from depthkit.training.parallel.ranks import ALONE, Ranks
from depthkit.utilization import Report, Sequences, Subject, evaluate
from depthkit.utilization.evaluation import NO_TASKS
from depthkit.utilization.options import EvalOptions
from depthkit.utilization.sequences import draw
from depthkit.utilization.tasks.items import Items


def held_out(loaded: Loaded, options: EvalOptions) -> Sequences:
    """A seeded draw of the run's held-out windows.

    An evaluation runs the model at its nominal loop counts, so of a task that asks for loop counts only the
    problems that ask for these are drawn.

    Raises:
        ValueError: the data now comes with another tokenizer than the checkpoint was trained with, or no
            held-out problem asks for the model's nominal loop counts.
    """
    settings = loaded.config.data
    if options.sequence_length is not None:
        settings = settings.model_copy(update={"sequence_length": options.sequence_length})
    data = open_data(settings, loaded.config.seed)
    if data.tokenizer.fingerprint != loaded.tokenizer:
        raise ValueError(f"{loaded.path}: trained with another tokenizer than data.tokenizer now gives")
    limit = 64 * options.sequences * settings.sequence_length
    pool = _nominal(loaded, list(data.validation(64, max_tokens=limit)))
    found = draw(Sequences.of_batches(pool), options.sequences, options.seed)
    facts = {"name": settings.corpus.kind, "split": "validation", "tokenizer": loaded.tokenizer}
    return found.labelled(facts | found.bytes_scored(data.tokenizer.byte_lengths))


def _nominal(loaded: Loaded, batches: list[Batch]) -> list[Batch]:
    """Batches that leave the loop count to the model, or ask for the one it has anyway."""
    model = loaded.model
    asked = {batch.loops for batch in batches if batch.loops is not None}
    suited = {loops for loops in asked if model.plan_at(loops).visits == model.plan.visits}
    if asked and not suited:
        raise ValueError(
            f"{loaded.path}: held-out problems ask for {sorted(asked)} loops, and none for the nominal count "
            "that an evaluation runs; add that to data.corpus.test_hops"
        )
    return [batch for batch in batches if batch.loops is None or batch.loops in suited]


def examine(
    loaded: Loaded,
    sequences: Sequences,
    options: EvalOptions,
    progress: Callable[[float, float], None] = lambda done, total: None,
    tasks: Mapping[str, Items] = NO_TASKS,
    ranks: Ranks = ALONE,
) -> Report:
    """Evaluate one checkpoint on `sequences`, which `ranks` share.

    `progress` gets (layer evaluations done, in all).
    """
    model = loaded.model.to(device.choose(options.device))
    return evaluate(
        Subject(model, name=loaded.path.resolve().parents[1].name),
        sequences,
        options.asked,
        options.seed,
        batch_tokens=options.batch_tokens,
        replay=options.replay,
        null=options.nulls,
        tasks=tasks,
        ranks=ranks,
        info={"path": str(loaded.path), "step": loaded.step, "tokenizer": loaded.tokenizer},
        progress=progress,
    )
