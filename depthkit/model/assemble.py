"""From a model's config to its modules."""

from __future__ import annotations

from typing import Any

from torch import nn

from depthkit.model.block import Block, Norms
from depthkit.model.norms.base import Norm
from depthkit.model.norms.none import NoNorm
from depthkit.model.plan import Plan
from depthkit.model.regulators.base import Regulator
from depthkit.model.schedules import Schedules
from depthkit.model.schema import ModelConfig, SegmentConfig


def make_norm(config: Any, dim: int, gain: bool = True) -> Norm:
    """The norm a config describes, with or without its per-channel gain; None is the identity."""
    return NoNorm(None, dim) if config is None else config.component(config, dim, gain)


def make_layers(config: ModelConfig, plan: Plan, stream: nn.Module) -> nn.ModuleList:
    """One block for every stored layer of `plan`."""
    segments = {segment.name: segment for segment in config.segments}
    stored = zip(plan.layer_blocks, plan.layer_segments, strict=True)
    return nn.ModuleList(_make_block(config, segments[segment], kind, stream) for kind, segment in stored)


def _make_block(config: ModelConfig, segment: SegmentConfig, kind: str, stream: nn.Module) -> Block:
    block, dim = config.blocks[kind], config.dim
    mixer, ffn = block.mixer.component(block.mixer, dim), block.ffn.component(block.ffn, dim)
    return Block(mixer, ffn, (_make_norms(config, segment), _make_norms(config, segment)), stream)


def _make_norms(config: ModelConfig, segment: SegmentConfig) -> Norms:
    norm, placement = config.norm_of(segment), config.placement_of(segment)
    gain = config.norm_gains(segment)
    return Norms(*(make_norm(norm if wanted else None, config.dim, gain) for wanted in placement))


def make_schedules(config: ModelConfig, stream_bank: nn.Module | None = None) -> Schedules:
    """All regulators with the segments they act in, the model's first, then those of single segments."""
    shared = frozenset(s.name for s in config.segments if s.regulators is None)
    pairs = [(_make_regulator(c, config), shared) for c in config.regulators]
    own = [
        (_make_regulator(c, config), frozenset({segment.name}))
        for segment in config.segments
        for c in segment.regulators or []
    ]
    return Schedules(pairs + own, everywhere=len(pairs), stream_bank=stream_bank)


def _make_regulator(regulator: Any, config: ModelConfig) -> Regulator:
    made = regulator.component(regulator, config.dim)
    made.build(config)
    return made
