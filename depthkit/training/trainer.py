"""The training loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from depthkit.data import Batch, Data
from depthkit.model import Transformer, account
from depthkit.training import device, diagnosis, metrics, optim, profiling, saving
from depthkit.training.evaluation import evaluate
from depthkit.training.parallel.base import Parallel, one_process
from depthkit.training.parallel.quiet import QuietRecorder
from depthkit.training.parallel.shares import share
from depthkit.training.progress import ProgressLine
from depthkit.training.recorder import Recorder
from depthkit.training.run import RunConfig
from depthkit.training.step import Stepper, StepResult
from depthkit.training.stopping import StopRequest
from depthkit.training.telemetry import DepthTelemetry


class DivergedError(ValueError):
    """Too many steps in a row had a non-finite loss or gradient."""


class Trainer:
    """Everything that changes while a run trains, and the loop that changes it.

    Args:
        config: the run, with `model.vocab_size` filled in.
        model: on its device.
        data: batches.
        parallel: how the work is shared among processes, of which this is one.
    """

    def __init__(self, config: RunConfig, model: Transformer, data: Data, parallel: Parallel | None = None):
        self.config, self.model, self.data = config, model, data
        self.parallel = parallel or one_process()
        self.ranks = self.parallel.ranks
        self.step = self.tokens = self.bad_steps = 0
        self.last_loss: float | None = None
        train = config.train
        length = config.data.sequence_length
        self.total = train.total_steps(length)
        self.schedule = train.schedule.component(train.schedule, self.total)
        model.checkpointing = train.activation_checkpointing.component(train.activation_checkpointing)
        self.parallel.shard(model)
        maker = train.optimizer.component(train.optimizer)
        self.optimizer: torch.optim.Optimizer = maker.build(optim.parameter_groups(model), train.lr)
        self.device = next(model.parameters()).device
        self.autocast = device.runs_bf16(train.precision, self.device)
        curriculum = train.loop_curriculum.component(train.loop_curriculum)
        self.stepper = Stepper(
            model,
            self.optimizer,
            train.clip,
            self.autocast,
            seed=config.seed,
            scale=lambda step: curriculum(step / self.total),
            parallel=self.parallel,
        )
        self._flops = account(config.model, length).train_flops_per_token
        self._peak = device.peak_flops(self.device, self.autocast)
        self.position: dict[str, Any] | None = None
        """Where the data stood in the checkpoint that was restored."""

    def fit(self, recorder: Recorder | QuietRecorder, progress: ProgressLine, stop: StopRequest) -> None:
        """Train to the end, or until `stop` is asked for; the last step is checkpointed either way.

        Raises:
            DivergedError: `max_bad_steps` steps in a row had a non-finite loss or gradient.
            OSError: something could not be written.
        """
        train = self.config.train
        number = self.step * train.accumulation
        batches = self.data.train(train.batch_size, start=number, state=self.position)
        saved = self.step if self.step else None
        with profiling.around_steps(self, recorder.folder, progress.say) as around:
            while self.step < self.total and not stop.asked(self.ranks):
                with around():
                    self._advance(batches, recorder, progress)
                if self._due(train.checkpoint_every):
                    saving.save(self, recorder)
                    saved = self.step
        if saved != self.step:
            saving.save(self, recorder)
        saving.finish(self, recorder)

    def _due(self, every: int | None) -> bool:
        return every is not None and self.step % every == 0

    def _advance(
        self, batches: Iterator[Batch], recorder: Recorder | QuietRecorder, progress: ProgressLine
    ) -> None:
        began = time.perf_counter()
        micro = [next(batches) for _ in range(self.config.train.accumulation)]
        lr = self.config.train.lr * self.schedule(self.step + 1)
        optim.set_lr(self.optimizer, lr)
        self.step += 1
        telemetry = DepthTelemetry() if self._due(self.config.train.telemetry_every) else None
        result = self.stepper.take(micro, self.step, telemetry)
        self.tokens += result.scored
        if result.finite:
            self.bad_steps, self.last_loss = 0, result.loss
            progress.update(self._record(result, lr, time.perf_counter() - began, recorder))
        else:
            self._skip(result, micro, recorder, progress)
        if telemetry is not None:
            recorder.telemetry(self.step, telemetry.row())
            recorder.experts(self.step, telemetry.experts)
        if self.step == self.total or self._due(self.config.train.eval_every):
            self._validate(recorder, progress)

    def _record(
        self, result: StepResult, lr: float, seconds: float, recorder: Recorder | QuietRecorder
    ) -> metrics.Row:
        speed = result.scored / seconds
        return recorder.train(
            self.step,
            loss=result.loss,
            objective=result.objective,
            grad_norm=result.grad_norm,
            lr=lr,
            tokens=self.tokens,
            tok_s=round(speed, 1),
            mfu=None if self._peak is None else speed * self._flops / self._peak,
            memory_mb=round(device.memory_bytes(self.device) / 2**20, 1),
        )

    def _skip(
        self,
        result: StepResult,
        micro: list[Batch],
        recorder: Recorder | QuietRecorder,
        progress: ProgressLine,
    ) -> None:
        """Note a step that was not taken; stop the run when there were too many in a row."""
        self.bad_steps += 1
        values = {"nats": result.loss, "objective": result.objective, "grad_norm": result.grad_norm}
        shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        recorder.event("bad_step", self.step, in_a_row=self.bad_steps, reason=shown)
        progress.say(f"step {self.step} skipped: {shown}")
        if self.bad_steps < self.config.train.max_bad_steps:
            return
        part = share(micro[0], self.ranks, self.device).batch
        with self.parallel.apart(self.model):
            where = diagnosis.first_non_finite(self.model, part, self.step, self.autocast, self.ranks)
        recorder.event("diverged", self.step, where=where)
        raise DivergedError(
            f"step {self.step}: {self.bad_steps} steps in a row had a non-finite loss or gradient "
            f"(train.max_bad_steps). First non-finite: {where}. "
            "A lower train.lr or a longer warm-up may help."
        )

    def _validate(self, recorder: Recorder | QuietRecorder, progress: ProgressLine) -> None:
        train = self.config.train
        with self.parallel.apart(self.model):
            result = evaluate(
                self.model, self.data, train.batch_size, train.eval_tokens, self.autocast, self.ranks
            )
        recorder.validation(self.step, result)
        progress.say(f"step {self.step}/{self.total} held-out loss {result.val_loss:.4f} nats per token")
