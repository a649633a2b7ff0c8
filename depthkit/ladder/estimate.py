"""How long a rung will take here: a shallow twin takes a few steps, and its cost is extended to the depth.

Cost is linear in depth for everything but streams that read all earlier layers, for which this is too little.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from depthkit.data import Batch
from depthkit.ladder.cost import counts, evaluated_visits
from depthkit.model import ModelConfig, Transformer, account
from depthkit.training import device, optim
from depthkit.training.run import RunConfig
from depthkit.training.step import Stepper
from depthkit.utilization.options import EvalOptions

SHALLOW, DEEPER = 1, 3
"""Layouts of every segment in the two twins."""

LARGEST = 2e10
"""FLOPs of a micro-batch of the deeper twin above which only a matrix product is timed, in its place."""

EFFICIENCY = 0.5
"""Share of a matrix product's speed that large models are taken to reach."""

TIMED = 6
"""Steps of a twin of which the quickest counts."""

BESIDE = 2.0
"""Seconds of a rung beside steps and layer evaluations: opening data, building, checkpoint, report."""


@dataclass(frozen=True)
class Speed:
    """Seconds of a micro-batch: a part that does not depend on depth, and what each visit adds."""

    fixed: float
    visit: float

    def step(self, depth: int) -> float:
        """Seconds of a micro-batch at some depth, backward and update included."""
        return self.fixed + self.visit * depth


class Estimator:
    """Times each kind of model once. Seconds are CPU seconds, or those of the GPU where that computes."""

    def __init__(self) -> None:
        self._speeds: dict[str, Speed] = {}

    def seconds(self, run: RunConfig, options: EvalOptions) -> float:
        """What a rung takes, evaluation included; `model.vocab_size` must be filled in."""
        twin = shallow(run.model, SHALLOW).model_copy(update={"embedding_std": 1.0})
        key = (
            f"{twin.model_dump_json()} {run.data.sequence_length} {run.train.model_dump_json(exclude={'lr'})}"
        )
        if key not in self._speeds:
            self._speeds[key] = _timed(run) if _small(run) else _reckoned(run)
        speed, depth = self._speeds[key], run.model.plan().depth
        steps = run.total_steps * run.train.accumulation
        tokens = run.train.batch_size * run.data.sequence_length
        evaluated = options.sequences * options.length(run.data.sequence_length)
        layers = evaluated_visits(options, depth) * evaluated / tokens
        return BESIDE + steps * speed.step(depth) + layers * speed.visit / 3


def shallow(model: ModelConfig, layouts: int) -> ModelConfig:
    """The model with every segment's pattern laid out so many times, and executed once."""
    segments = [
        segment.model_copy(update={"repeat": layouts, "loops": 1, "shared": True})
        for segment in model.segments
    ]
    return model.model_copy(update={"segments": segments})


def _small(run: RunConfig) -> bool:
    flops = account(shallow(run.model, DEEPER), run.data.sequence_length).train_flops_per_token
    return flops * run.train.batch_size * run.data.sequence_length < LARGEST


def _timed(run: RunConfig) -> Speed:
    """Least of some steps of two twins: what is more is other programs' doing."""
    chosen = device.choose(run.train.device)
    with device.threads(run.train.threads or 1), torch.random.fork_rng(devices=[]):
        found = []
        for layouts in (SHALLOW, DEEPER):
            twin = shallow(run.model, layouts)
            found.append((twin.plan().depth, _step_seconds(run, twin, chosen)))
    (few, short), (many, long) = found
    visit = max(1e-6, (long - short) / (many - few))
    return Speed(max(0.0, short - few * visit), visit)


def _step_seconds(run: RunConfig, model: ModelConfig, chosen: torch.device) -> float:
    built = Transformer(model).to(chosen)
    train = run.train
    built.checkpointing = train.activation_checkpointing.component(train.activation_checkpointing)
    maker = train.optimizer.component(train.optimizer)
    optimizer = maker.build(optim.parameter_groups(built), train.lr)
    stepper = Stepper(built, optimizer, train.clip, device.runs_bf16(train.precision, chosen))
    shape = (train.batch_size, run.data.sequence_length)
    ids = torch.zeros(shape, dtype=torch.int64, device=chosen)
    batch = Batch(ids, ids, ids if run.data.document_mask else None, 0)
    stepper.take([batch], 1)
    return min(_clocked(lambda: stepper.take([batch], 2), chosen) for _ in range(TIMED))


def _clocked(work: Callable[[], object], chosen: torch.device) -> float:
    clock = time.process_time if chosen.type == "cpu" else time.perf_counter
    began = clock()
    work()
    if chosen.type != "cpu":
        torch.cuda.synchronize(chosen)
    return clock() - began


def _reckoned(run: RunConfig) -> Speed:
    """From the speed of one product of this model's width, for models whose steps would take long."""
    chosen = device.choose(run.train.device)
    tokens, dim = min(4096, run.train.batch_size * run.data.sequence_length), run.model.dim
    left, right = torch.zeros(tokens, dim, device=chosen), torch.zeros(dim, dim, device=chosen)
    with device.threads(run.train.threads or 1):
        torch.mm(left, right)
        seconds = min(_clocked(lambda: torch.mm(left, right), chosen) for _ in range(3))
    speed = EFFICIENCY * 2 * tokens * dim * dim / seconds
    batch = run.train.batch_size * run.data.sequence_length
    return Speed(0.0, counts(run).train_flops_per_token * batch / speed / run.model.plan().depth)


def shown(seconds: float) -> str:
    """`12 s`, `3.4 min`, `5.2 h`, `14 days`."""
    for size, unit, digits in ((86400, "days", 0), (3600, "h", 1), (60, "min", 1)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:,.{digits}f} {unit}"
    return f"{seconds:.0f} s"
