"""From a model's config to its modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from depthkit.model.block import Block, Norms
from depthkit.model.contracts import Stream
from depthkit.model.gains import BRANCHES
from depthkit.model.loops.recurrence import Recurrence
from depthkit.model.norms.base import Norm
from depthkit.model.norms.none import NoNorm
from depthkit.model.plan import Plan
from depthkit.model.regulators.base import Regulator
from depthkit.model.schedules import Schedules
from depthkit.model.schema import ModelConfig, SegmentConfig


def make_norm(config: Any, dim: int, gain: bool, role: str) -> Norm:
    """The norm a config describes, with or without its per-channel gain; None is the identity."""
    return NoNorm(None, dim) if config is None else config.component(config, dim, gain, role)


def make_layers(config: ModelConfig, plan: Plan, stream: Stream) -> nn.ModuleList:
    """One block for every stored layer of `plan`."""
    segments = {segment.name: segment for segment in config.segments}
    stored = zip(plan.layer_blocks, plan.layer_segments, strict=True)
    return nn.ModuleList(_make_block(config, segments[segment], kind, stream) for kind, segment in stored)


def _make_block(config: ModelConfig, segment: SegmentConfig, kind: str, stream: Stream) -> Block:
    block, dim = config.blocks[kind], config.dim
    mixer, ffn = block.mixer.component(block.mixer, dim), block.ffn.component(block.ffn, dim)
    return Block(mixer, ffn, tuple(_make_norms(config, segment, branch) for branch in BRANCHES), stream)


def _make_norms(config: ModelConfig, segment: SegmentConfig, branch: str) -> Norms:
    norm, placement = config.norm_of(segment), config.placement_of(segment)
    gain = config.norm_gains(segment)
    sites = zip(placement, (branch, "after", "after"), strict=True)
    return Norms(*(make_norm(norm if wanted else None, config.dim, gain, role) for wanted, role in sites))


def make_schedules(config: ModelConfig, stream: Stream | None = None) -> Schedules:
    """All regulators with the segments they act in, the model's first, then those of single segments; with
    what `stream` and the branches keep for every visit."""
    plan = config.longest_plan()
    pairs = [(_make_regulator(r, config), segments) for r, segments in config.acting_regulators()]
    bank = None if stream is None else stream.bank(plan)
    return Schedules(pairs, len(config.regulators), bank, dict(_branch_banks(config, plan)))


def _branch_banks(config: ModelConfig, plan: Plan) -> Iterator[tuple[tuple[str, str], nn.Module]]:
    for kind in dict.fromkeys(visit.block for visit in plan.visits):
        for branch in BRANCHES:
            part = getattr(config.blocks[kind], branch)
            make = getattr(part.component, "bank", None)
            bank = None if make is None else make(part, config.dim, plan.of_block(kind))
            if bank is not None:
                yield (kind, branch), bank


def make_recurrences(config: ModelConfig, stream: Stream, final_norm: nn.Module) -> nn.ModuleDict:
    """What happens between the visits of every segment that is more than its blocks in a row."""
    return nn.ModuleDict(
        {
            segment.name: Recurrence(segment, config.dim, stream, *_out_norm(config, segment, final_norm))
            for segment in config.segments
            if segment.recurs
        }
    )


def _out_norm(config: ModelConfig, segment: SegmentConfig, final_norm: nn.Module) -> tuple[Any, bool]:
    """The norm on what a segment hands on, and whether it is the segment's own."""
    if segment.out_norm == "final":
        return final_norm, False
    setting = config.out_norm_of(segment)
    return (
        None if setting is None else make_norm(setting, config.dim, config.norm_gains(segment), "final")
    ), True


def _make_regulator(regulator: Any, config: ModelConfig) -> Regulator:
    made = regulator.component(regulator, config.dim)
    made.build(config)
    return made
