"""The `kind: run` document: one model, trained once."""

from __future__ import annotations

import argparse
import signal
import warnings
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, model_validator

from depthkit import config as configs
from depthkit.config import DOCUMENTS
from depthkit.data import DataConfig, open_data
from depthkit.model import ModelConfig
from depthkit.registry import Spec
from depthkit.training.parallel.layout import ParallelConfig, check_experts
from depthkit.training.parallel.world import world
from depthkit.training.settings import TrainConfig


@DOCUMENTS.register("run")
class Run:
    """One training run: a model, its data, and how it is trained."""

    class Config(Spec):
        """A complete run."""

        seed: int = Field(0, ge=0)
        """Decides initialisation and order of the data, each through a stream of its own."""
        model: ModelConfig
        """The model."""
        data: DataConfig = Field(default_factory=lambda: DataConfig.model_validate({}))
        """The text."""
        train: TrainConfig
        """The training."""
        parallel: ParallelConfig = Field(default_factory=lambda: ParallelConfig.model_validate({}))
        """How the work is shared among processes."""
        incidental: ClassVar[frozenset[str]] = frozenset({"parallel"})
        """Sections that are no part of what a run is: it may go on among another number of processes."""

        @model_validator(mode="after")
        def _phases_fit(self) -> Run.Config:
            try:
                self.train.schedule.component(self.train.schedule, self.total_steps)
            except ValueError as error:
                raise ValueError(f"train.{error}") from None
            return self

        @model_validator(mode="after")
        def _loops_can_be_run(self) -> Run.Config:
            for count in getattr(self.data.corpus, "loops", list)():
                try:
                    self.model.plan(count)
                except ValueError as error:
                    raise ValueError(f"data.corpus {self.data.corpus.kind}: {error}") from None
            return self

        @model_validator(mode="after")
        def _experts_can_be_spread(self) -> Run.Config:
            check_experts(self.parallel.expert, self.model)
            return self

        @property
        def total_steps(self) -> int:
            """Optimiser steps of the whole run."""
            return self.train.total_steps(self.data.sequence_length)

        def advice(self) -> list[str]:
            """Settings that have no effect, or that defeat each other; one sentence each."""
            late = [
                f"train.{name}: {every} is more than the run's {self.total_steps} steps, so it never happens"
                for name in ("eval_every", "telemetry_every")
                if (every := getattr(self.train, name)) is not None and every > self.total_steps
            ]
            return [*self.model.advice(), *late]

        def with_vocabulary(self, size: int) -> Run.Config:
            """The same run with `model.vocab_size` taken from a tokenizer of `size` ids.

            Raises:
                ValueError: the model has fewer ids than the tokenizer.
            """
            own = self.model.vocab_size
            if own is not None and own < size:
                raise ValueError(
                    f"model.vocab_size: {own} is less than the tokenizer's {size} ids; "
                    f"use null or at least {size}"
                )
            model = self.model.model_copy(update={"vocab_size": own or size})
            return self.model_copy(update={"model": model})

        def execute(self, arguments: argparse.Namespace) -> int:
            """Do what the command line asks for; `arguments` are those of train.py. Returns the exit code.

            0: finished, or nothing was left to do. 130, 143: stopped by Ctrl-C, SIGTERM, after a checkpoint.
            """
            place = world()
            if place.is_first:
                for sentence in self.advice():
                    warnings.warn(sentence, stacklevel=1)
            if arguments.dry_run:
                from depthkit.training.dry_run import dry_run

                if place.is_first:
                    dry_run(self, full=arguments.full)
                return 0
            resume = arguments.resume if arguments.resume_from is None else arguments.resume_from
            if place.restarts:  # a process has died, and torchrun has started all of them again
                resume = True
            folder = arguments.run_dir or default_folder(self, arguments.config)
            stopped = train(self, folder, resume)["stopped"]
            return 128 + signal.Signals[stopped] if stopped else 0


RunConfig = Run.Config


def resolve_model(config: RunConfig) -> ModelConfig:
    """The run's model with a vocabulary size, the tokenizer's if the config has null.

    Raises:
        ValueError: as `open_data` and `RunConfig.with_vocabulary`.
        OSError: data cannot be read.
    """
    if config.model.vocab_size is not None:
        return config.model
    size = open_data(config.data, config.seed).tokenizer.vocab_size
    return config.with_vocabulary(size).model


def default_folder(config: Spec, source: Path) -> Path:
    """`runs/<name of the config file>-<8 hex digits of the resolved config>`."""
    return Path("runs") / f"{source.stem}-{configs.fingerprint(config)}"


def train(
    config: RunConfig, run_dir: Path, resume: bool | int = False, quiet: bool = False
) -> dict[str, Any]:
    """Train one run in this process, together with those that torchrun has started with it.

    Args:
        config: the run.
        run_dir: its folder, made if needed.
        resume: true continues from the latest checkpoint (or from nothing when there is none), a number
            from the checkpoint of that step; false asks for a folder without a run.
        quiet: print nothing.

    Returns:
        `run_dir`, `step`, `train_loss` (of the last step), `val_loss`, `bits_per_byte`, `unigram_entropy`
        (nats per token of the held-out text), `seconds` of this process, and `stopped`: None when the run
        is finished, else the name of the signal that ended it early (held-out losses are None then).

    Raises:
        ValueError: the folder, data, tokenizer, device or a checkpoint does not go with the config, or the
            run diverged.
        OSError: something could not be read or written.
    """
    from depthkit.training.session import run_session

    return run_session(config, Path(run_dir), resume, quiet)
