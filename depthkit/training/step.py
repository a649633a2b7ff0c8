"""One optimiser step: forward and backward over the micro-batches, clip, update; a bad one is skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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
from depthkit.training.parallel.base import Parallel, device_of, one_process
from depthkit.training.parallel.norms import scale
from depthkit.training.parallel.ranks import Ranks, summed
from depthkit.training.parallel.shares import Share, share
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
        parallel: how the work is shared among processes, of which this is one.
    """

    def __init__(
        self,
        model: Transformer,
        optimizer: torch.optim.Optimizer,
        clip: float | None,
        autocast: bool,
        seed: int = 0,
        scale: Callable[[int], float] = lambda step: 1.0,
        parallel: Parallel | None = None,
    ):
        self.model = model
        self.parallel = parallel or one_process()
        self.ranks = self.parallel.ranks
        self._run = self.parallel.wrap(model)
        self.seed, self.scale = seed, scale
        self.optimizer = optimizer
        self.clip = clip
        self.autocast = autocast

    def take(
        self, batches: Sequence[Batch], step: int, telemetry: DepthTelemetry | None = None
    ) -> StepResult:
        """One step over `batches`, each weighted by its share of the scored tokens.

        Every rank is given all sequences and takes its slice; what is returned is the same on all of them.

        A non-finite loss or gradient leaves weights and optimiser as they were; see `StepResult.finite`.

        Args:
            batches: micro-batches.
            step: number of this step, from 1.
            telemetry: measures the first micro-batch with scored tokens.
        """
        if not self.model.training:
            self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loads: dict[Key, Tensor] = {}
        shares = [share(batch, self.ranks, device_of(self.model)) for batch in batches]
        loss, objective, scored = self._accumulate(shares, step, telemetry, loads)
        if telemetry is not None:
            telemetry.measure_gradients(self.model, self.parallel.norm)
        norm = self._clip()
        result = StepResult(float(loss), float(objective), float(norm), scored)
        if result.finite:
            self.optimizer.step()
            self.model.after_step(all_loads(loads, self.ranks))
        return result

    def _accumulate(
        self,
        shares: Sequence[Share],
        step: int,
        telemetry: DepthTelemetry | None,
        loads: dict[Key, Tensor],
    ) -> tuple[Tensor, Tensor, int]:
        total = sum(part.scored for part in shares)
        scored = [micro for micro, part in enumerate(shares) if part.scored]
        sums = torch.zeros(2, dtype=torch.float64)
        for micro in scored:
            part = shares[micro]
            # A rank without scored tokens takes part with weight 0, or the others would wait for it.
            weight, ranks = part.own / total, self.ranks.size
            whole = part.scored / total
            observe = telemetry.watch(ranks * whole, self.ranks) if telemetry is not None else None
            with self.parallel.meeting(last=micro == scored[-1]):
                output = self._forward(part, step, micro, observe)
                assert output.loss is not None
                assert output.cross_entropy is not None
                # Gradients are averaged over ranks, and are to be the sum.
                (output.loss * (weight * ranks)).backward()
            sums += weight * torch.stack([output.cross_entropy, output.loss]).detach().double().cpu()
            add_loads(loads, output)
            if telemetry is not None:
                telemetry.experts = ExpertTelemetry.of(output, part.batch.targets != IGNORE, self.ranks)
            telemetry = None
        loss, objective = self.ranks.sum(sums)
        return loss, objective, total

    def _forward(self, part: Share, step: int, micro: int, observe: Observe | None) -> Output:
        drawn = loop_counts(self.model.config, self.seed, step, micro, self.scale(step))
        loops = drawn if part.batch.loops is None else part.batch.loops
        random = noise(self.seed, step, micro, part.rows)
        return forward(self._run, part.batch, step, self.autocast, observe, loops=loops, noise=random)

    def _clip(self) -> Tensor:
        gradients = optim.gradients(self.optimizer)
        norm = self.parallel.norm(gradients)
        if self.clip is not None:
            factor = torch.clamp(self.clip / (norm + CLIP_EPS), max=1.0)
            scale(gradients, factor)
        return norm


def add_loads(loads: dict[Key, Tensor], output: Output) -> None:
    """Add the expert loads `[E]` of one micro-batch to those of the step, by visit."""
    for visit, aux in zip(output.visits, output.aux, strict=True):
        if "load" in aux:
            load = aux["load"].detach()
            loads[visit.key] = loads[visit.key] + load if visit.key in loads else load


def all_loads(loads: dict[Key, Tensor], ranks: Ranks) -> dict[Key, Tensor]:
    """The loads of all ranks together; every rank has made the same visits."""
    return dict(zip(loads, summed(ranks, list(loads.values())), strict=True))


def forward(
    model: Callable[..., Any],
    batch: Batch,
    step: int,
    autocast: bool,
    observe: Observe | None = None,
    loops: Loops = None,
    noise: Noise = EVALUATION,
) -> Output:
    """The model's output on one micro-batch, under bf16 autocast if asked for."""
    with torch.autocast(batch.ids.device.type, dtype=torch.bfloat16, enabled=autocast):
        output: Output = model(
            batch.ids,
            batch.targets,
            batch.documents,
            step=torch.tensor(step, device=batch.ids.device),
            observe=observe,
            loops=loops,
            noise=noise,
        )
    return output
