"""From a model and token windows to a report: record, check the checks, one sweep, all probes."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from depthkit.utilization import canaries, effective_depth
from depthkit.utilization.options import probe_configs
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.replay import Engine, Trace, sweep_cost
from depthkit.utilization.report.build import Baseline, Findings, build
from depthkit.utilization.report.report import Report
from depthkit.utilization.result import Result
from depthkit.utilization.sequences import Sequences
from depthkit.utilization.statistics import Sample
from depthkit.utilization.subject import Subject

Progress = Callable[[float, float], None]


@dataclass
class Clock:
    """Wall seconds by stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Any:
        """Add the time spent in the block to `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def evaluate(
    model: Subject | nn.Module,
    sequences: Any,
    probes: Any = None,
    seed: int = 0,
    *,
    batch_tokens: int = 1024,
    info: Mapping[str, Any] | None = None,
    progress: Progress = lambda done, total: None,
) -> Report:
    """Measure what each visit of a layer contributes.

    Args:
        model: a `Subject`, or a module that one can be made of. It is left as it was.
        sequences: token ids `[N, T+1]`, `(ids, targets, mask)`, or `Sequences`.
        probes: a preset's name, a list of probe names or `{kind: ...}` configs; None is "quick".
        seed: bootstrap resamples and subsamples.
        batch_tokens: tokens per micro-batch; the results do not depend on it beyond rounding.
        info: facts about the model for the report, such as its path and step.
        progress: called with (layer evaluations done, in all).

    Raises:
        ValueError: unusable sequences, unknown probes, a model that cannot be replayed.
        CanaryError: a check of the measuring failed.
    """
    subject = model if isinstance(model, Subject) else Subject(model)
    data, configs = Sequences.of(sequences), probe_configs(probes)
    _check(subject, data)
    meter = _Meter(progress)
    with subject.frozen():
        engine = Engine(subject, data, batch_tokens, meter.advance)
        return build(_measure(engine, configs, seed, meter, dict(info or {})))


def _measure(engine: Engine, configs: list[Any], seed: int, meter: _Meter, info: dict[str, Any]) -> Findings:
    subject, data, clock = engine.subject, engine.sequences, Clock()
    with clock.stage("record"):
        traces = engine.record()
    depth, width = traces[0].depth, traces[0].states[0].shape[-1]
    probes: list[Probe] = [c.component(c, Context(subject, data, depth, seed)) for c in configs]
    meter.total = sweep_cost(depth, any(probe.requires == "skip" for probe in probes))
    with clock.stage("canaries"):
        checks = canaries.check(subject, traces[0])
    _sweep(engine, traces, probes, clock)
    with clock.stage("compute"):
        result = _merge(probe.compute() for probe in probes)
        result.scalars |= effective_depth.family(result, seed)
    return Findings(
        model=subject.describe(depth, width) | info,
        env=_environment(subject),
        data=data.describe() | {"seed": seed},
        places=engine.places(traces[0]),
        baseline=_baseline(traces, data, seed),
        result=result,
        checks=checks,
        timing={"layer_evals": engine.layer_evals, "seconds": clock.seconds},
    )


class _Meter:
    """Turns increments into (done, total)."""

    def __init__(self, progress: Progress):
        self.done, self.total, self._progress = 0.0, float("nan"), progress

    def advance(self, evals: float) -> None:
        self.done += evals
        if self.total == self.total:
            self._progress(self.done, self.total)


def _sweep(engine: Engine, traces: list[Trace], probes: list[Probe], clock: Clock) -> None:
    of_states = [probe for probe in probes if probe.requires == "stream"]
    of_skips = [probe for probe in probes if probe.requires == "skip"]
    with clock.stage("states"):
        for trace in traces:
            for probe in of_states:
                probe.update(trace)
    if not of_skips:
        return
    with clock.stage("skip_sweep"):
        for step in engine.skip_sweep(traces):
            for probe in of_skips:
                probe.update(step)


def _merge(results: Iterable[Result]) -> Result:
    merged = Result()
    for result in results:
        for name in ("per_visit", "matrices", "scalars", "samples", "skipped"):
            getattr(merged, name).update(getattr(result, name))
    return merged


def _baseline(traces: list[Trace], data: Sequences, seed: int) -> Baseline:
    nats = torch.cat([trace.scores.nats.double() for trace in traces]).sum(1)
    correct = torch.cat([trace.scores.correct for trace in traces]).cpu() & data.scored.cpu()
    counts = data.scored.sum(1).cpu().double().numpy()[None]
    loss = Sample(nats.numpy()[None], counts)
    accuracy = Sample(correct.double().sum(1).numpy()[None], counts)
    return Baseline(loss, accuracy, loss.interval(seed))


def _environment(subject: Subject) -> dict[str, Any]:
    return {
        "depthkit": version("depthkit"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": str(subject.device),
        "threads": torch.get_num_threads(),
    }


def _check(subject: Subject, data: Sequences) -> None:
    if data.num_scored == 0:
        raise ValueError("sequences: no token to score (all targets are -100 or padding)")
    size: Any = getattr(subject.model, "vocab_size", None)
    low, high = int(data.ids.min()), int(data.ids.max())
    if low < 0 or (size is not None and high >= size):
        raise ValueError(f"sequences: token ids run from {low} to {high}, the model knows {size}, from 0")
