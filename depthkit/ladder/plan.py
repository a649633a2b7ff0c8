"""`--dry-run` of a ladder: every rung with its size and cost."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from depthkit.config import fingerprint
from depthkit.data import open_data
from depthkit.ladder.axes import short_name
from depthkit.ladder.spec import LadderConfig
from depthkit.model import account


def print_plan(ladder: LadderConfig) -> None:
    """A table of rungs: place on the axes, depth, parameters, tokens, training FLOPs."""
    rungs = ladder.rungs()
    table = Table(title=f"{len(rungs)} rungs", title_justify="left", box=None, pad_edge=False)
    for axis in ladder.axes:
        table.add_column(short_name(axis))
    for name in ("depth", "parameters", "tokens", "train FLOPs"):
        table.add_column(name, justify="right")
    vocabularies: dict[str, int] = {}
    for rung in rungs:
        run = rung.config
        steps, length = run.total_steps, run.data.sequence_length
        tokens = steps * run.train.tokens_per_step(length)
        key = fingerprint(run.data)
        if key not in vocabularies:
            vocabularies[key] = open_data(run.data, run.seed).tokenizer.vocab_size
        model = run.with_vocabulary(vocabularies[key]).model
        counts = account(model, length)
        cells = [str(label) for label in rung.place.values()]
        numbers = [f"{model.plan().depth}", f"{counts.stored:,}", f"{tokens:,}"]
        table.add_row(*cells, *numbers, f"{counts.train_flops_per_token * tokens:.3g}")
    Console(highlight=False).print(table)
