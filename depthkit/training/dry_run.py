"""What a run would be: its plan, its sizes, its cost; nothing is trained and no model is allocated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from depthkit.data import open_data
from depthkit.data.remote import remote
from depthkit.model import Accounting, ModelConfig, account
from depthkit.model.assemble import make_schedules
from depthkit.model.gains import BRANCHES, SiteGains
from depthkit.training import device
from depthkit.training.memory import Memory, estimate
from depthkit.training.parallel.layout import Layout
from depthkit.training.parallel.world import world
from depthkit.training.run import RunConfig

SHOWN = 12
"""Visits at each end of a plan that is shortened."""


def dry_run(config: RunConfig, full: bool = False, console: Console | None = None) -> None:
    """Print plan, gains, parameters, FLOPs, batch arithmetic and memory of a run.

    Data that would have to be fetched is left alone where `model.vocab_size` is written in the config.

    Args:
        config: the run.
        full: show every visit of a long plan.

    Raises:
        ValueError: data, tokenizer or device do not go with the config.
    """
    console = console or Console(highlight=False)
    config, known = look_at_data(config)
    chosen = device.choose(config.train.device)
    counts = account(config.model, config.data.sequence_length)
    layout = config.parallel.arranged(world().size)
    memory = estimate(config, device.runs_bf16(config.train.precision, chosen), layout)
    console.print(plan_table(config.model, full))
    console.print(_pairs("parameters", parameter_rows(counts)))
    console.print(_pairs("FLOPs per token", flop_rows(counts)))
    console.print(_pairs("batches", batch_rows(config, known.get("train_tokens"))))
    if layout.world > 1:
        console.print(_pairs("processes", process_rows(config, layout)))
    each = "" if layout.world == 1 else " of each process"
    console.print(_pairs(f"memory on {device.name(chosen)}{each}, estimated", memory_rows(config, memory)))
    if not known:
        console.print(
            f"not fetched, so how many tokens there are is not known: {', '.join(remote(config.data))}"
        )


def look_at_data(config: RunConfig) -> tuple[RunConfig, dict[str, Any]]:
    """The run with its vocabulary, and the summary of its data; empty where the data was not fetched."""
    if config.model.vocab_size is not None and remote(config.data):
        return config, {}
    data = open_data(config.data, config.seed)
    return config.with_vocabulary(data.tokenizer.vocab_size), data.summary()


def plan_table(model: ModelConfig, full: bool = False) -> Table:
    """Every visit with its key, layer, block and initial gains; the middle of a long plan is left out."""
    plan = model.plan()
    columns = ["visit", "key", "layer", "block", *(f"{b} read/write/skip" for b in BRANCHES)]
    table = Table(*columns, title=f"plan: {plan.depth} visits of {plan.num_layers} layers")
    table.caption = "gains at the start; - is none, ~ the mean of a gain per feature"
    gains = _initial_gains(model)
    cut = range(SHOWN, plan.depth - SHOWN) if plan.depth > 2 * SHOWN and not full else range(0)
    for visit in plan.visits:
        if visit.index not in cut:
            sites = (_gains_text(site) for site in gains[visit.index])
            table.add_row(str(visit.index), str(visit.key), str(visit.layer), visit.block, *sites)
        elif visit.index == cut[0]:
            table.add_row("...", f"{len(cut)} more (--full)", *[""] * 4)
    return table


def _initial_gains(model: ModelConfig) -> list[tuple[SiteGains, SiteGains]]:
    schedules = make_schedules(model)
    for module in schedules.modules():
        reset = getattr(module, "reset_parameters", None)
        if isinstance(module, nn.Module) and reset is not None:
            reset()
    plan = model.plan()
    return schedules(plan).per_visit(plan.depth)


def _gains_text(site: SiteGains) -> str:
    """Read, write and skip; a gain per feature is shown by its mean."""
    return " ".join("-" if gain is None else _gain_text(gain) for gain in site)


def _gain_text(gain: Tensor) -> str:
    return f"{gain.detach().float().mean().item():.4g}" + ("" if gain.numel() == 1 else "~")


def parameter_rows(counts: Accounting) -> Iterable[tuple[str, str]]:
    """Stored parameters by part and in all, active and executed ones."""
    yield from ((part, f"{count:,}") for part, count in counts.by_part.items())
    yield "stored", f"{counts.stored:,}"
    yield "active (a token touches)", f"{counts.active:,}"
    yield "executed (counted at every visit)", f"{counts.executed:,}"


def flop_rows(counts: Accounting) -> Iterable[tuple[str, str]]:
    """Forward and training FLOPs of one token."""
    yield "forward", f"{counts.flops_per_token:,.0f}"
    rule = "3 x forward; loops without gradient 1 x" if counts.truncated_flops_per_token else "3 x forward"
    yield f"training ({rule})", f"{counts.train_flops_per_token:,.0f}"


def batch_rows(config: RunConfig, train_tokens: int | None) -> Iterable[tuple[str, str]]:
    """How sequences make steps, steps a run, and runs epochs."""
    train, length = config.train, config.data.sequence_length
    step = train.tokens_per_step(length)
    yield "tokens a step", f"{train.batch_size} x {train.accumulation} x {length} = {step:,}"
    yield "steps", f"{config.total_steps:,}"
    yield "tokens in all", f"{step * config.total_steps:,}"
    epochs = f"{step * config.total_steps / train_tokens:.2f}" if train_tokens else "not known"
    yield "epochs", epochs


def process_rows(config: RunConfig, layout: Layout) -> Iterable[tuple[str, str]]:
    """How processes share the work."""
    share = layout.share(config.train.batch_size)
    yield "mesh", str(layout)
    yield "sequences of a micro-batch", f"{share} of {config.train.batch_size} a process"


def memory_rows(config: RunConfig, memory: Memory) -> Iterable[tuple[str, str]]:
    """Megabytes by use."""
    setting = config.train.activation_checkpointing
    for name in ("parameters", "gradients", "optimizer", "activations", "total"):
        note = f" {setting.component.estimated}" if name in ("activations", "total") else ""
        yield (name + note).rstrip(), f"{getattr(memory, name) / 2**20:,.1f} MB"


def _pairs(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    table = Table("", "", title=title, show_header=False, title_justify="left")
    table.columns[1].justify = "right"
    for row in rows:
        table.add_row(*row)
    return table
