"""One model at initialisation: a forward, a backward, and the Jacobians of some blocks.

Shapes: B batch, T time, D width, L blocks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from depthkit.config import to_yaml
from depthkit.data import Batch, DataConfig, open_data
from depthkit.data.data import Data
from depthkit.ladder.init_study.metrics import CURVES
from depthkit.ladder.spec import Rung
from depthkit.model import Output, Transformer
from depthkit.training.device import threads
from depthkit.training.step import forward
from depthkit.training.telemetry import DepthTelemetry
from depthkit.utilization.capture import Call, Capture, capturing
from depthkit.utilization.probes.stream import growth
from depthkit.utilization.statistics import Number, number

FIRST_STEP = 1


@dataclass(frozen=True)
class Measured:
    """Numbers of one model, by block; null where undefined (a zero gradient's ratio, an overflow)."""

    rung: Rung
    curves: dict[str, list[Number]] = field(default_factory=dict)
    """Quantity of `CURVES` -> one number a block; `jacobian` is null at blocks that were not measured."""
    error: str | None = None
    """Why there are no numbers."""
    notes: tuple[str, ...] = ()
    """What could not be measured, and why."""
    seconds: float = 0.0
    """CPU time."""

    def metrics(self) -> dict[str, Number]:
        """The numbers named in `METRICS`."""
        found: dict[str, Number] = {}
        for name, values in self.curves.items():
            found |= {f"{name}_first": values[0], f"{name}_last": values[-1]}
            if name != "gradient":
                found[f"{name}_middle"] = values[middle(len(values)) - 1]
        ratio = _ratio(found["gradient_first"], found["gradient_last"])
        found |= {"gradient_ratio": ratio, "gradient_log_ratio": math.log(ratio) if ratio else None}
        return found | self._law()

    def _law(self) -> dict[str, Number]:
        found = growth(self.curves["variance"])
        # All but `better_fit`, which is a word.
        fits = {name: value for name, value in found.items() if not isinstance(value, str)}
        power, exponential = fits["power_r2"], fits["exponential_r2"]
        better = None if power is None or exponential is None else exponential - power
        return {**fits, "exponential_minus_power_r2": better}


def middle(depth: int) -> int:
    """The 1-based number of the block at half depth."""
    return max(1, depth // 2)


def spread_blocks(depth: int, count: int) -> list[int]:
    """About `count` 1-based block numbers evenly spaced in ln l, with the first, the middle and the last."""
    spaced = np.unique(np.geomspace(1, depth, count).round().astype(int))
    return sorted({*spaced.tolist(), middle(depth), depth})


def measure_safely(rung: Rung, probes: int, jacobians: int) -> Measured:
    """`measure`, with an error kept as text, so that it ends nothing else, and the CPU time noted."""
    began = time.process_time()
    try:
        found = measure(rung, probes, jacobians)
    except (ValueError, OSError, RuntimeError) as error:
        found = Measured(rung, error=f"{type(error).__name__}: {error}")
    return replace(found, seconds=time.process_time() - began)


@lru_cache
def _open(config: str, seed: int) -> Data:
    """The data of a config given as YAML, opened once a process."""
    return open_data(DataConfig.model_validate(yaml.safe_load(config)), seed)


def measure(rung: Rung, probes: int, jacobians: int) -> Measured:
    """Build the model of `rung` and look at it.

    Args:
        rung: the run whose first step is looked at but not taken.
        probes: random vectors per Jacobian.
        jacobians: about how many blocks have their Jacobian measured.
    """
    data = _open(to_yaml(rung.config.data), rung.config.seed)
    run = rung.config.with_vocabulary(data.tokenizer.vocab_size)
    with threads(run.train.threads):
        batch = next(data.train(run.train.batch_size))
        model = Transformer(run.model, run.seed).train()
        output, telemetry, seen, notes = _forward(model, batch)
        blocks = spread_blocks(model.plan.depth, jacobians) if seen else []
        curves = {"jacobian": _jacobians(seen, model.plan.depth, blocks, probes, run.seed)}
        assert output.loss is not None
        output.loss.backward()
        telemetry.measure_gradients(model)
    row: dict[str, Any] = telemetry.row()
    curves |= {"variance": row["variance"], "angle": row["angle"], "gradient": row["layer_grad_norm"]}
    return Measured(rung, {name: curves[name] for name in CURVES}, notes=notes)


def _forward(
    model: Transformer, batch: Batch
) -> tuple[Output, DepthTelemetry, Capture | None, tuple[str, ...]]:
    """The model's output and what its blocks were called with, if their state is one tensor [B, T, D]."""

    def run() -> tuple[Output, DepthTelemetry]:
        telemetry = DepthTelemetry(sample=batch.ids.numel())
        return forward(model, batch, FIRST_STEP, False, telemetry.watch(1.0)), telemetry

    try:
        with capturing(list(model.layers)) as seen:
            return (*run(), seen, ())
    except ValueError as error:
        return (*run(), None, (f"no Jacobians: {error}",))


def _jacobians(
    seen: Capture | None, depth: int, blocks: Iterable[int], probes: int, seed: int
) -> list[Number]:
    values: list[Number] = [None] * depth
    generator = torch.Generator().manual_seed(seed)
    for block in blocks:
        assert seen is not None
        call, state = seen.calls[block - 1], seen.before[block - 1]
        values[block - 1] = distance_to_identity(call, state, probes, generator)
    return values


def distance_to_identity(call: Call, state: Tensor, probes: int, generator: torch.Generator) -> Number:
    """|J - I|_F / sqrt(BTD) of one visit at `state` [B, T, D].

    Hutchinson's estimate with vector-Jacobian products, which every attention kernel has:
    E |(J - I)^T v|^2 = |J - I|_F^2 over vectors v of +-1.
    """
    state = state.detach().requires_grad_()
    after = call(state)
    squares = []
    for _ in range(probes):
        v = torch.randint(0, 2, state.shape, generator=generator).to(state.dtype) * 2 - 1
        (back,) = torch.autograd.grad(after, state, v, retain_graph=True)
        squares.append((back - v).double().square().mean())
    return number(torch.stack(squares).mean().sqrt())


def _ratio(first: Number, last: Number) -> Number:
    return None if first is None or not last else number(first / last)
