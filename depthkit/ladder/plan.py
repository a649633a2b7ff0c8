"""`--dry-run` of a ladder: every rung with its size and cost."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from depthkit.ladder.axes import short_name
from depthkit.ladder.cost import Vocabularies, counts, train_tokens
from depthkit.ladder.estimate import Estimator, shown
from depthkit.ladder.spec import LadderConfig, Rung
from depthkit.training import device


class Planned(NamedTuple):
    """What a rung would be."""

    rung: Rung
    depth: int
    dim: int
    parameters: int
    tokens: int
    flops: float
    seconds: float


def planned(ladder: LadderConfig, rungs: Sequence[Rung]) -> Iterator[Planned]:
    """Sizes and costs of every rung.

    Raises:
        ValueError: the data cannot be opened, where a vocabulary depends on it.
    """
    vocabularies, estimator = Vocabularies(), Estimator()
    for rung in rungs:
        run = vocabularies.fill(rung.config)
        found, tokens = counts(run), train_tokens(run)
        flops = found.train_flops_per_token * tokens
        seconds = estimator.seconds(run, ladder.evaluate)
        yield Planned(rung, run.model.plan().depth, run.model.dim, found.stored, tokens, flops, seconds)


def print_plan(ladder: LadderConfig, only: Sequence[Rung] | None = None) -> None:
    """A table of rungs, then what they take in all."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    rungs = ladder.rungs() if only is None else list(only)
    table = Table(title=f"{len(rungs)} rungs", title_justify="left", box=None, pad_edge=False)
    for axis in ladder.all_axes:
        table.add_column(short_name(axis))
    for name in ("visits", "width", "parameters", "tokens", "train FLOPs", "time"):
        table.add_column(name, justify="right")
    found = list(planned(ladder, rungs))
    for item in found:
        cells = [Text(str(label)) for label in item.rung.place.values()]
        sizes = [
            str(item.depth),
            str(item.dim),
            f"{item.parameters:,}",
            f"{item.tokens:,}",
            f"{item.flops:.3g}",
        ]
        table.add_row(*cells, *sizes, shown(item.seconds))
    console.print(table)
    console.print(_in_all(ladder, found), soft_wrap=True)


def _in_all(ladder: LadderConfig, found: Sequence[Planned]) -> str:
    total, longest = sum(item.seconds for item in found), max(item.seconds for item in found)
    chosen = device.choose(found[0].rung.config.train.device)
    workers = ladder.launch.component.workers(ladder.launch)
    flops, tokens = sum(item.flops for item in found), sum(item.tokens for item in found)
    words = [
        f"in all {flops:.3g} FLOPs, {tokens:,} tokens",
        f"about {total / 60:.1f} {'CPU' if chosen.type == 'cpu' else 'GPU'} minutes on {device.name(chosen)}",
        f"{shown(max(longest, total / workers))} on {workers} at a time",
        "times are extended from a few steps of shallow twins",
    ]
    return "; ".join(words)
