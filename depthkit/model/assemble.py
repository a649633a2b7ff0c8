"""From a model's config to its modules."""

from __future__ import annotations

from typing import Any

from torch import nn

from depthkit.model.block import Block, Norms
from depthkit.model.gains import BRANCHES
from depthkit.model.norms.base import Norm
from depthkit.model.norms.none import NoNorm
from depthkit.model.plan import Plan
from depthkit.model.regulators.base import Regulator
from depthkit.model.schedules import Schedules
from depthkit.model.schema import ModelConfig, SegmentConfig


def make_norm(config: Any, dim: int, gain: bool, role: str) -> Norm:
    """The norm a config describes, with or without its per-channel gain; None is the identity."""
    return NoNorm(None, dim) if config is None else config.component(config, dim, gain, role)


def make_layers(config: ModelConfig, plan: Plan, stream: nn.Module) -> nn.ModuleList:
    """One block for every stored layer of `plan`."""
    segments = {segment.name: segment for segment in config.segments}
    stored = zip(plan.layer_blocks, plan.layer_segments, strict=True)
    return nn.ModuleList(_make_block(config, segments[segment], kind, stream) for kind, segment in stored)


def _make_block(config: ModelConfig, segment: SegmentConfig, kind: str, stream: nn.Module) -> Block:
    block, dim = config.blocks[kind], config.dim
    mixer, ffn = block.mixer.component(block.mixer, dim), block.ffn.component(block.ffn, dim)
    return Block(mixer, ffn, tuple(_make_norms(config, segment, branch) for branch in BRANCHES), stream)


def _make_norms(config: ModelConfig, segment: SegmentConfig, branch: str) -> Norms:
    norm, placement = config.norm_of(segment), config.placement_of(segment)
    gain = config.norm_gains(segment)
    sites = zip(placement, (branch, "after", "after"), strict=True)
    return Norms(*(make_norm(norm if wanted else None, config.dim, gain, role) for wanted, role in sites))


def make_schedules(config: ModelConfig, stream_bank: nn.Module | None = None) -> Schedules:
    """All regulators with the segments they act in, the model's first, then those of single segments."""
    pairs = [(_make_regulator(r, config), segments) for r, segments in config.acting_regulators()]
    return Schedules(pairs, everywhere=len(config.regulators), stream_bank=stream_bank)


def _make_regulator(regulator: Any, config: ModelConfig) -> Regulator:
    made = regulator.component(regulator, config.dim)
    made.build(config)
    return made
