"""Everyone who takes part at a shape: depthkit's variants and the peers, equal before they are timed."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch._dynamo

from benchmarks.bench.candidate import Candidate
from benchmarks.bench.equal import check_equal
from benchmarks.bench.ours import VARIANTS, Ours
from benchmarks.bench.peers import PEERS
from benchmarks.bench.shapes import Shape

COMPILED = ("transformers",)
"""Peers that are measured compiled as well."""
BASE = "transformers"
"""What tables compare with."""


@dataclass
class Contenders:
    """Candidates by name, and what is to be said about them."""

    candidates: dict[str, Candidate] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def gather(shape: Shape, compiled: bool = True) -> Contenders:
    """Build everyone, and check that all compute what depthkit's default does.

    Raises:
        DifferentError: someone does not.
    """
    if compiled:
        # Without this a library whose compiled code was made too often would run eager in silence.
        torch._dynamo.config.fail_on_recompile_limit_hit = True
    reference = Ours(shape)
    expected = reference.measure()
    found = Contenders({"depthkit": reference})
    for name, overrides in VARIANTS.items():
        if overrides and (compiled or "train.compile=true" not in overrides):
            found.candidates[name] = Ours(shape, overrides)
    for kind in PEERS.names():
        _add_peer(found, kind, reference, compiled)
    differences = [
        check_equal(name, candidate, reference, expected)
        for name, candidate in found.candidates.items()
        if candidate is not reference
    ]
    if differences:
        loss, gradient = (max(column) for column in zip(*differences, strict=True))
        found.notes.append(
            f"{shape.label} {shape.precision}: {reference.num_parameters:,} parameters each; losses differ "
            f"by at most {loss:.1e}, gradients by {gradient:.1e} (relative)"
        )
    return found


def _add_peer(found: Contenders, kind: str, reference: Ours, compiled: bool) -> None:
    peer, state = PEERS.get(kind), reference.state
    try:
        found.candidates[kind] = peer(reference.shape, state)
    except ImportError as error:
        found.notes.append(f"{kind} is absent: {error}")
        return
    if compiled and kind in COMPILED:
        found.candidates[f"{kind}, compiled"] = peer(reference.shape, state, compiled=True)
