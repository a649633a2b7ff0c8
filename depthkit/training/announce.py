"""The sentences a run begins and ends with."""

from __future__ import annotations

from pathlib import Path

import torch

from depthkit.training import device
from depthkit.training.metrics import Row
from depthkit.training.run import RunConfig
from depthkit.training.trainer import Trainer


def beginning(trainer: Trainer, run_dir: Path) -> str:
    """What is about to be trained, on what."""
    config, plan = trainer.config, trainer.model.plan
    stored = trainer.parallel.stored
    parameters = sum(stored(name, p).numel() for name, p in trainer.model.named_parameters())
    tokens = config.train.tokens_per_step(config.data.sequence_length)
    precision = "bf16 autocast" if trainer.autocast else "fp32"
    return (
        f"{run_dir}: depth {plan.depth}, {plan.num_layers} layers, {parameters:,} parameters; "
        f"init {config.model.init.kind}, embedding std {config.model.embedding_std}\n"
        f"steps {trainer.step} to {trainer.total} of {tokens:,} tokens on {device.name(trainer.device)}, "
        f"{precision}, {torch.get_num_threads()} CPU threads"
        f"{_processes(trainer)}"
    )


def _processes(trainer: Trainer) -> str:
    """A line where several processes share the work, or were meant to."""
    layout, asked = trainer.parallel.layout, trainer.config.parallel.data.kind
    if layout.world > 1:
        share = layout.share(trainer.config.train.batch_size)
        return f"\n{layout}; {share} sequences of a micro-batch each"
    return "" if asked in ("auto", "none") else f"\nparallel.data {asked}: one process has nothing to share"


def ending(config: RunConfig, run_dir: Path, row: Row) -> str:
    """How a run ended: its held-out losses, or where it was stopped."""
    if row["event"] == "stop":
        return f"stopped by {row['signal']} after step {row['step']}; continue with --resume ({run_dir})"
    entropy, loss = row["unigram_entropy"], row["val_loss"]
    unit = "byte" if config.data.tokenizer.kind == "bytes" else "token"
    bits = "" if row["bits_per_byte"] is None else f", {row['bits_per_byte']:.4f} bits per byte"
    side = "below" if loss < entropy else "above"
    return (
        f"held-out loss {loss:.4f} nats per token{bits}\n"
        f"{unit}-unigram entropy of the held-out text {entropy:.4f}: "
        f"the model is {abs(entropy - loss):.4f} nats {side} it"
        f"{_accuracy(row)}"
    )


def _accuracy(row: Row) -> str:
    """A line for tasks: how many answers are right at each number of hops."""
    by_hops = row.get("accuracy_by_hops")
    if not by_hops:
        return ""
    return "\nright answers by hops: " + ", ".join(f"{hops}: {share:.3f}" for hops, share in by_hops.items())
