"""One optimiser step: forward and backward over the micro-batches, clip, update; a bad one is skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from depthkit.data import Batch
from depthkit.model import Key, Output, Transformer
from depthkit.model.cross_entropy import IGNORE
from depthkit.model.loops.states import EVALUATION, Noise
from depthkit.model.transformer import Loops
from depthkit.model.walk import Observe
from depthkit.training import optim
from depthkit.training.expert_telemetry import ExpertTelemetry
from depthkit.training.looping import loop_counts, noise
from depthkit.training.telemetry import DepthTelemetry

CLIP_EPS = 1e-6
"""Added to the norm that gradients are divided by, as PyTorch's own clipping does."""


@dataclass(frozen=True)
class StepResult:
    """What one step measured; token-weighted over its micro-batches."""

    loss: float
    """Cross-entropy, nats per scored token."""
    objective: float
    """What was differentiated: cross-entropy and the auxiliary losses."""
    grad_norm: float
    """Global gradient norm before clipping."""
    scored: int
    """Targets that were scored."""

    @property
    def finite(self) -> bool:
        """Whether loss and gradient are numbers one may follow."""
        numbers = torch.tensor([self.loss, self.objective, self.grad_norm])
        return bool(torch.isfinite(numbers).all())


class Stepper:
    """Takes optimiser steps on one model.

    Args:
        clip: largest global gradient norm, or None.
        autocast: run matrix products in bf16.
        seed: of the run, for loop counts and initial states that are drawn.
        scale: step -> factor on loop counts (a curriculum).
    """

    def __init__(
        self,
        model: Transformer,
        optimizer: torch.optim.Optimizer,
        clip: float | None,
        autocast: bool,
        seed: int = 0,
        scale: Callable[[int], float] = lambda step: 1.0,
    ):
        self.model = model
        self.seed, self.scale = seed, scale
        self.optimizer = optimizer
        self.clip = clip
        self.autocast = autocast

    def take(
        self, batches: Sequence[Batch], step: int, telemetry: DepthTelemetry | None = None
    ) -> StepResult:
        """One step over `batches`, each weighted by its share of the scored tokens.

        A non-finite loss or gradient leaves weights and optimiser as they were; see `StepResult.finite`.

        Args:
            batches: micro-batches on the model's device.
            step: number of this step, from 1.
            telemetry: measures the first micro-batch with scored tokens.
        """
        if not self.model.training:
            self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loads: dict[Key, Tensor] = {}
        loss, objective, scored = self._accumulate(batches, step, telemetry, loads)
        if telemetry is not None:
            telemetry.measure_gradients(self.model)
        norm = self._clip()
        result = StepResult(float(loss), float(objective), float(norm), scored)
        if result.finite:
            self.optimizer.step()
            self.model.after_step(loads)
        return result

    def _accumulate(
        self,
        batches: Sequence[Batch],
        step: int,
        telemetry: DepthTelemetry | None,
        loads: dict[Key, Tensor],
    ) -> tuple[Tensor, Tensor, int]:
        counts = [batch.num_scored for batch in batches]
        total = sum(counts)
        sums = torch.zeros(2, dtype=torch.float64)
        for micro, (batch, count) in enumerate(zip(batches, counts, strict=True)):
            if count == 0:
                continue
            weight = count / total
            observe = telemetry.watch(weight) if telemetry is not None else None
            output = self._forward(batch, step, micro, observe)
            assert output.loss is not None
            assert output.cross_entropy is not None
            (output.loss * weight).backward()
            sums += weight * torch.stack([output.cross_entropy, output.loss]).detach().double().cpu()
            add_loads(loads, output)
            if telemetry is not None:
                telemetry.experts = ExpertTelemetry.of(output, batch.targets != IGNORE)
            telemetry = None
        return sums[0], sums[1], total

    def _forward(self, batch: Batch, step: int, micro: int, observe: Observe | None) -> Output:
        drawn = loop_counts(self.model.config, self.seed, step, micro, self.scale(step))
        loops = drawn if batch.loops is None else batch.loops
        return forward(
            self.model, batch, step, self.autocast, observe, loops=loops, noise=noise(self.seed, step, micro)
        )

    def _clip(self) -> Tensor:
        gradients = optim.gradients(self.optimizer)
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.clip is not None:
            factor = torch.clamp(self.clip / (norm + CLIP_EPS), max=1.0)
            torch._foreach_mul_(list(gradients), factor)
        return norm


def add_loads(loads: dict[Key, Tensor], output: Output) -> None:
    """Add the expert loads `[E]` of one micro-batch to those of the step, by visit."""
    for visit, aux in zip(output.visits, output.aux, strict=True):
        if "load" in aux:
            load = aux["load"].detach()
            loads[visit.key] = loads[visit.key] + load if visit.key in loads else load


def forward(
    model: Transformer,
    batch: Batch,
    step: int,
    autocast: bool,
    observe: Observe | None = None,
    loops: Loops = None,
    noise: Noise = EVALUATION,
) -> Output:
    """The model's output on one micro-batch, under bf16 autocast if asked for."""
    with torch.autocast(batch.ids.device.type, dtype=torch.bfloat16, enabled=autocast):
        return model(
            batch.ids,
            batch.targets,
            batch.documents,
            step=torch.tensor(step, device=batch.ids.device),
            observe=observe,
            loops=loops,
            noise=noise,
        )
