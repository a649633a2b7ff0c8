"""One measurement of one model: record, check the checks, sweep, all probes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from depthkit.utilization import canaries, effective_depth
from depthkit.utilization.accumulators import Ranks, Total
from depthkit.utilization.canaries import Canary
from depthkit.utilization.memory import within_memory
from depthkit.utilization.merging import together
from depthkit.utilization.options import ReplayOptions
from depthkit.utilization.paper import Found, Paper
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.replay import DEFAULTS, Engine, Trace
from depthkit.utilization.result import Result
from depthkit.utilization.sequences import Sequences
from depthkit.utilization.statistics import Interval, Sample
from depthkit.utilization.subject import Place, Subject
from depthkit.utilization.tasks.items import Items

FAMILY = "effective depth"
"""Who owns the scalars that are made of several probes' results."""


@dataclass
class Clock:
    """Wall seconds by stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time spent in the block to `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass
class Meter:
    """Turns increments into (done, total); the total is known once probes have said what they want."""

    show: Callable[[float, float], None]
    done: float = 0.0
    total: float = float("nan")

    def advance(self, evals: float) -> None:
        """Add layer evaluations."""
        self.done += evals
        if self.total == self.total:
            self.show(self.done, self.total)


@dataclass(frozen=True)
class Baseline:
    """Loss and accuracy of the intact model by sequence, and the loss's interval."""

    loss: Sample
    accuracy: Sample
    interval: Interval | None


@dataclass(frozen=True)
class Findings:
    """All that one measurement found. `owners` says which probe a number belongs to."""

    model: dict[str, Any]
    places: list[Place]
    baseline: Baseline
    result: Result
    owners: dict[str, str]
    checks: dict[str, Canary]
    timing: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What to measure, and how.

    Attributes:
        configs: of the probes, validated.
        paper: whose aggregations to add.
        seed: bootstrap resamples and subsamples.
        batch_tokens: tokens of a micro-batch to begin with; out of memory it is halved.
        replay: stacking, and where recorded states are kept.
        tasks: multiple-choice items by task.
        ranks: the processes that share the sequences; None is this one alone.
    """

    configs: list[Any]
    paper: Paper | None
    seed: int
    batch_tokens: int
    replay: ReplayOptions = DEFAULTS
    tasks: Mapping[str, Items] = field(default_factory=dict)
    ranks: Ranks | None = None


def measure(subject: Subject, data: Sequences, plan: Plan, show: Callable[[float, float], None]) -> Findings:
    """Measure one model, in evaluation mode, on some sequences.

    Raises:
        ValueError: a model that cannot be replayed.
        CanaryError: a check of the measuring failed.
    """

    def attempt(batch_tokens: int) -> Findings:
        meter = Meter(show)
        engine = Engine(subject, data, batch_tokens, meter.advance, plan.replay, plan.ranks)
        return _measure(engine, plan, meter)

    with subject.frozen():
        return within_memory(attempt, plan.batch_tokens, data.ids.shape[1], plan.ranks is None)


def _measure(engine: Engine, plan: Plan, meter: Meter) -> Findings:
    subject, data, clock = engine.subject, engine.sequences, Clock()
    with clock.stage("record"):
        traces = engine.record()
    depth, width = traces[0].depth, traces[0].final.shape[-1]
    places = engine.places(traces[0])
    context = Context(subject, data, depth, plan.seed, places, engine.count, plan.tasks)
    probes: dict[str, Probe] = {c.kind: c.component(c, context) for c in plan.configs}
    with clock.stage("canaries"):
        checks = canaries.check(subject, traces[0])
    _sweep(engine, traces, list(probes.values()), clock, meter, plan.ranks)
    baseline = _baseline(traces, data, plan.seed, plan.ranks)
    with clock.stage("compute"):
        loss = float(baseline.loss.means()[0])
        result, owners = _answers(probes, plan, lambda merged: Found(merged, loss, width, depth))
    result.skipped |= subject.unavailable
    timing = engine.cost() | {"seconds": clock.seconds}
    model = subject.describe(depth, width)
    return Findings(model, places, baseline, result, owners, checks, timing)


def _sweep(
    engine: Engine,
    traces: list[Trace],
    probes: list[Probe],
    clock: Clock,
    meter: Meter,
    ranks: Ranks | None,
) -> None:
    with clock.stage("states"), together(probes, ranks):
        for trace in traces:
            for probe in probes:
                probe.see(trace)
    wanted = {probe: dict.fromkeys(probe.edits()) for probe in probes}
    with clock.stage("sweep"):
        while edits := dict.fromkeys(edit for asked in wanted.values() for edit in asked):
            meter.total = meter.done + sum(edit.visits(traces[0].depth) for edit in edits)
            exact = {edit for probe, asked in wanted.items() if probe.reads_aux for edit in asked}
            with together(probes, ranks):
                for step in engine.sweep(traces, edits, exact):
                    for probe, asked in wanted.items():
                        if step.edit in asked:
                            probe.update(step)
            wanted = {probe: dict.fromkeys(probe.more()) for probe in wanted}


def _answers(
    probes: dict[str, Probe], plan: Plan, found: Callable[[Result], Found]
) -> tuple[Result, dict[str, str]]:
    """What all probes found, what follows from it, and to whom each number belongs."""
    merged, owners = Result(), dict[str, str]()
    for kind, probe in probes.items():
        _add(merged, probe.compute(), kind, owners)
    _add(merged, Result(scalars=effective_depth.family(merged, plan.seed)), FAMILY, owners)
    if plan.paper is not None:
        scalars = plan.paper.aggregate(found(merged))
        _add(merged, Result(scalars=scalars, skipped=dict(plan.paper.left_out)), plan.paper.source, owners)
    return merged, owners


def _add(merged: Result, result: Result, owner: str, owners: dict[str, str]) -> None:
    for name in ("per_visit", "matrices", "scalars", "samples", "skipped"):
        getattr(merged, name).update(getattr(result, name))
        owners.update(dict.fromkeys(getattr(result, name), owner))


def _baseline(traces: list[Trace], data: Sequences, seed: int, ranks: Ranks | None) -> Baseline:
    sums = Total(2, len(data))
    for trace in traces:
        correct = trace.scores.correct.cpu() & trace.batch.scored.cpu()
        both = (trace.scores.nats.double().sum(1), correct.double().sum(1))
        sums.add((slice(None), trace.rows), torch.stack(both).numpy())
    if ranks:
        sums.merge(ranks)
    counts = data.scored.sum(1).cpu().double().numpy()[None]
    loss, accuracy = (Sample(row[None], counts) for row in sums.values)
    return Baseline(loss, accuracy, loss.interval(seed))
