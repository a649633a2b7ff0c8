"""Whether altered streams may be stacked: arguments known, a canary that agrees, and any use in it."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from depthkit.utilization.edits import Edit, skip
from depthkit.utilization.repeats import UnknownArgument
from depthkit.utilization.stack import Stacks
from depthkit.utilization.subject import Subject
from depthkit.utilization.sweep import Sweep
from depthkit.utilization.trace import Trace

TOLERANCE = 1e-5
"""Nats that a token may differ by, relative to the largest loss where that is above 1."""


def stacking(subject: Subject, traces: list[Trace], tokens: int) -> Stacks | None:
    """What runs streams together, or None, with a warning that says why not.

    A canary sweeps two skips of the first micro-batch both ways. That and learning how arguments go with
    the batch run the model a few times more.
    """
    smallest = min(trace.batch.ids.numel() for trace in traces)
    if tokens < 2 * smallest:
        _warn(f"no effect: a micro-batch of {smallest} tokens does not fit twice into batch_tokens={tokens}")
        return None
    batch = traces[0].batch
    try:
        documents = None if batch.documents is None else batch.documents.repeat(2, 1)
        rules = traces[0].path.repeats(lambda: subject.run(batch.ids.repeat(2, 1), documents))
        stacks = Stacks(subject, rules, tokens)
        for trace in traces:
            stacks.path(trace, 2)
    except UnknownArgument as reason:
        _warn(f"not used: {reason}")
        return None
    off = disagreement(subject, traces[0], stacks)
    if not off <= TOLERANCE:  # NaN included
        _warn(f"not used: stacked losses are off by {off:.2g}")
        return None
    return stacks


def disagreement(subject: Subject, trace: Trace, stacks: Stacks) -> float:
    """Largest difference of a token's loss between stacked and single skips; see `TOLERANCE`."""
    edits: list[Edit] = [skip(visit) for visit in sorted({0, trace.depth // 2})]
    alone, together = (_nats(Sweep(subject, stacks=way), trace, edits) for way in (None, stacks))
    return float((alone - together).abs().max() / alone.max().clamp(min=1.0))


def _nats(sweep: Sweep, trace: Trace, edits: list[Edit]) -> Tensor:
    found = {step.edit: step.scores.nats for step in sweep.steps([trace], edits) if step.scores}
    return torch.stack([found[edit] for edit in edits])


def _warn(reason: str) -> None:
    warnings.warn(f"replay.stack: {reason}", stacklevel=4)
