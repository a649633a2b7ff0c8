"""Checks that run before any number is trusted. One that fails stops the evaluation.

An identity replay would prove nothing (arguments that depend on the hidden state pass it), so what is
compared is a replayed skip with a full forward in which a hook skips.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from depthkit.utilization.edits import skip
from depthkit.utilization.replay import Trace, replay
from depthkit.utilization.subject import Subject

TOLERANCE = 1e-4
ROUNDINGS = 4
"""Units of rounding that logits in a short number type may differ by when batched otherwise."""


class CanaryError(ValueError):
    """A check of the measuring itself failed: no number would mean what its name says."""


@dataclass(frozen=True)
class Canary:
    """One check: whether it held, the size of the difference, and what was expected."""

    passed: bool
    value: float
    expected: str


def check(subject: Subject, trace: Trace) -> dict[str, Canary]:
    """Run every canary on one recorded micro-batch.

    Raises:
        CanaryError: any of them failed; the message names which, by how much and what was expected.
    """
    found = {
        "hooks_fired": _hooks_fired(subject, trace),
        "skip_first": _skip(subject, trace, 0),
        "skip_middle": _skip(subject, trace, trace.depth // 2),
        "lens_last_state": _lens(subject, trace),
        "sum_of_writes": _writes(trace),
    }
    failed = [f"{name} (off by {c.value:.3g}; {c.expected})" for name, c in found.items() if not c.passed]
    if failed:
        raise CanaryError(f"{subject.name}: the measuring is not sound here: " + "; ".join(failed))
    return found


def _hooks_fired(subject: Subject, trace: Trace) -> Canary:
    called = [trace.path.module(visit) for visit in range(trace.depth)]
    if subject.visits is not None:
        wanted = [subject.layers[visit.layer] for visit in subject.visits]
        off, expected = abs(len(called) - len(wanted)), f"the plan's {len(wanted)} visits in order, once each"
        return Canary(called == wanted, float(off), expected)
    missing = len(set(subject.layers) - set(called))
    return Canary(missing == 0, float(missing), "every layer is called")


def _skip(subject: Subject, trace: Trace, visit: int) -> Canary:
    batch = trace.batch
    hooked = trace.path.hooked_skip(visit, lambda: subject.run(batch.ids, batch.documents))
    replayed = trace.path.reached(replay(trace, skip(visit)))
    equal = torch.equal(replayed, hooked)
    return Canary(equal, _distance(replayed, hooked), f"replayed skip of visit {visit} bitwise as hooked")


def _lens(subject: Subject, trace: Trace) -> Canary:
    own = subject.own_losses(trace.batch)
    if own is not None:
        off, limit = _distance(trace.scores.nats, own.cpu()), TOLERANCE
        return Canary(off <= limit, off, "losses read from the last state are the model's own")
    logits = subject.logits(subject.run(trace.batch.ids, trace.batch.documents)).flatten(0, 1)
    state, size = trace.final.flatten(0, 1), subject.chunk(trace.final.shape[-1])
    parts = [slice(start, start + size) for start in range(0, len(logits), size)]
    off = max(_distance(subject.read_out(state[None, part])[0], logits[part]) for part in parts)
    largest = float(logits[logits.isfinite()].abs().max())  # a head may forbid tokens by -inf
    limit = max(TOLERANCE, ROUNDINGS * torch.finfo(subject.dtype).eps) * max(1.0, largest)
    return Canary(off <= limit, off, "the lens of the last state is the model's logits")


def _writes(trace: Trace) -> Canary:
    total = torch.zeros_like(trace.final, dtype=torch.float64)
    for before, after in zip(trace.before, trace.after, strict=True):
        total += after.double() - before.double()
    # What acts between visits, at the ends of loops, is no visit's write.
    for after, before in zip([*trace.after], [*trace.before[1:], trace.final], strict=True):
        total += before.double() - after.double()
    whole = trace.final.double() - trace.before[0].double()
    largest = max(float(state.abs().max()) for state in trace.states)
    off = _distance(total, whole)
    return Canary(
        off <= TOLERANCE * max(1.0, largest),
        off,
        "the writes, and what loops add between visits, sum to the last state minus the first",
    )


def _distance(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        return float("inf")
    return float((a - b).abs().where(a != b, 0.0).max())
