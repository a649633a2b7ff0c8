"""The `train:` section of a run, and the arithmetic that follows from it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from depthkit.config import Component
from depthkit.model.registries import CHECKPOINTING
from depthkit.registry import Spec
from depthkit.training.looping import CURRICULA
from depthkit.training.optim import OPTIMIZERS
from depthkit.training.schedule import SCHEDULES


class InitFrom(Spec):
    """Weights that a run starts from, in place of an initialisation."""

    path: str
    """A run, whose latest checkpoint is taken, or a checkpoint folder."""
    strict: bool = True
    """Refuse weights that only one side has. False leaves those that are missing as they are initialised and
    drops the others, with a warning that names them; other shapes are refused either way."""


class TrainConfig(Spec):
    """How a run trains. Exactly one of `steps` and `tokens` says when it ends."""

    steps: int | None = Field(None, ge=1)
    """Optimiser steps to run. Give this or `tokens`."""
    tokens: int | None = Field(None, ge=1)
    """Training tokens to see, rounded up to whole steps. Give this or `steps`."""
    batch_size: int = Field(8, ge=1)
    """Sequences in a micro-batch, which is what is in memory at once."""
    accumulation: int = Field(1, ge=1)
    """Micro-batches whose gradients make one optimiser step."""
    lr: float = Field(gt=0)
    """Peak learning rate; has no default, because every config should show its own."""
    optimizer: Annotated[Any, Component(OPTIMIZERS, default="adamw")] = Field("adamw", validate_default=True)
    """The optimiser and its settings."""
    schedule: Annotated[Any, Component(SCHEDULES, default="cosine")] = Field("cosine", validate_default=True)
    """How the learning rate follows the step."""
    clip: float | None = Field(1.0, gt=0)
    """Largest global gradient norm; null leaves gradients as they are."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """`bf16` runs matrix products under autocast, weights stay fp32; `auto` is bf16 on GPUs, fp32 on CPUs."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes the GPU when there is one."""
    threads: int | None = Field(None, ge=1)
    """CPU threads. Null leaves PyTorch's choice; a resumed run takes the count it was started with."""
    eval_every: int | None = Field(None, ge=1)
    """Steps between evaluations on held-out text; null evaluates at the end only."""
    eval_tokens: int | None = Field(None, ge=1)
    """Held-out tokens that an evaluation reads, spread evenly over the text; null reads all."""
    checkpoint_every: int = Field(200, ge=1)
    """Steps between checkpoints; one is written on every clean exit as well."""
    keep: int = Field(3, ge=1)
    """How many checkpoints are kept, counted back from the newest."""
    telemetry_every: int | None = Field(None, ge=1)
    """Steps between measurements of every visit (variance, write ratio, angle, gradients); null is never."""
    max_bad_steps: int = Field(5, ge=1)
    """Steps in a row with a non-finite loss or gradient, each skipped, after which the run stops."""
    compile: bool = False
    """Compile the blocks; pays off on runs of more than a few minutes."""
    profile: bool = False
    """Profile three steps after three of warm-up, and leave `profile.txt`, `profile.json` (time by site) and
    `trace.json.gz` (a timeline) in the run folder."""
    activation_checkpointing: Annotated[Any, Component(CHECKPOINTING)] = Field("none", validate_default=True)
    """What the backward pass computes again instead of keeping: none, block, every_k, selective."""
    loop_curriculum: Annotated[Any, Component(CURRICULA)] = Field("none", validate_default=True)
    """How loop counts grow over the run; the configured ones are reached at its end."""
    init_from: Annotated[
        InitFrom | None, BeforeValidator(lambda v: {"path": v} if isinstance(v, str) else v)
    ] = None
    """Weights to start from, with a fresh optimiser at step 0: a run or checkpoint, or {path, strict}."""

    @model_validator(mode="after")
    def _one_end(self) -> TrainConfig:
        if (self.steps is None) == (self.tokens is None):
            given = "both" if self.steps is not None else "neither"
            raise ValueError(f"give exactly one of steps and tokens, not {given}")
        return self

    def total_steps(self, sequence_length: int) -> int:
        """Optimiser steps of the whole run."""
        if self.steps is not None:
            return self.steps
        assert self.tokens is not None
        return -(-self.tokens // self.tokens_per_step(sequence_length))

    def tokens_per_step(self, sequence_length: int) -> int:
        """Positions in one optimiser step: sequences x micro-batches x length."""
        return self.batch_size * self.accumulation * sequence_length
