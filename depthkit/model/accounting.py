"""Parameters and FLOPs of a model from its config alone; nothing is allocated.

Convention: a multiply-add counts as 2 FLOPs; matrix products and attention are counted, norms, activations
and the loss are not. `flops_per_token` counts the scores a mask asks for (causal attention over T tokens:
2(T+1) H head_dim a token and visit); `executed_flops_per_token` counts what dense kernels compute, all T x T
scores, and equals torch's FlopCounterMode. A training step is taken as 3 forwards.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from depthkit.model.loops.recurrence import recurrence_parameters
from depthkit.model.plan import Plan
from depthkit.model.schema import ModelConfig, SegmentConfig


@dataclass(frozen=True)
class Accounting:
    """Counts of one model at one context length."""

    by_part: dict[str, int]
    """Stored parameters by part: embed, norms, head, and mixer/ffn of every block kind."""
    active: int
    """Parameters that one token touches, each counted once."""
    executed: int
    """Parameters that one token touches, counted every time they are used."""
    flops_per_token: float
    """Forward FLOPs that the model asks for, averaged over the tokens of a full window."""
    executed_flops_per_token: float
    """Forward FLOPs of dense kernels."""
    truncated_flops_per_token: float = 0.0
    """Forward FLOPs of loops that training runs without gradient, at the nominal loop count."""

    @property
    def stored(self) -> int:
        """Parameters in a checkpoint."""
        return sum(self.by_part.values())

    @property
    def train_flops_per_token(self) -> float:
        """Forward and backward; loops cut off from the backward pass cost their forward only."""
        return 3 * self.flops_per_token - 2 * self.truncated_flops_per_token


def account(config: ModelConfig, context: int) -> Accounting:
    """Count parameters and FLOPs for windows of `context` tokens.

    Raises:
        ValueError: `vocab_size` is null.
    """
    if config.vocab_size is None:
        raise ValueError("model.vocab_size: null means the tokenizer's, but there is no tokenizer here")
    dim, vocab = config.dim, config.vocab_size
    parts: Counter[str] = Counter()
    head = config.head.num_parameters(dim, vocab)
    parts["embed"] = dim * vocab
    parts["head"] = head
    gain = config.norm_gains(None)
    parts["norms"] = sum(_norm_size(config.outer_norm(n), dim, gain) for n in ("embed_norm", "final_norm"))
    active = executed = sum(parts.values()) - dim * vocab + dim  # one row of the embedding
    if head == 0:
        active, executed = active + dim * vocab - dim, executed + dim * vocab - dim  # tied: read in full
    flops = dense = 2.0 * dim * vocab * context
    truncated = 0.0
    for segment in config.segments:
        loops = segment.num_loops
        copies = 1 if segment.shared else segment.longest_loops
        norms = _segment_norms(config, segment)
        recurring = recurrence_parameters(segment, dim) + _out_norm_size(config, segment)
        if recurring:
            parts[f"{segment.name}.recurrence"] += recurring
            out_norm = _out_norm_size(config, segment)
            used, always = (recurrence_parameters(segment, dim, count) for count in (loops, 0))
            active += used + out_norm
            executed += used + out_norm + always * (loops - 1)
        once = context * segment.inject.flops(dim)
        flops, dense = flops + once * loops, dense + once * loops
        for kind in segment.pattern * segment.repeat:
            block = config.blocks[kind]
            for branch in ("mixer", "ffn"):
                part = getattr(block, branch)
                parts[f"{kind}.{branch}"] += part.num_parameters(dim) * copies
                active += part.active_parameters(dim) * min(copies, loops)
                executed += part.active_parameters(dim) * loops
                flops += part.flops(dim, context) * loops
                once += part.flops(dim, context)
                dense += part.executed_flops(dim, context) * loops
            parts["norms"] += norms * copies
            active, executed = active + norms * min(copies, loops), executed + norms * loops
        truncated += once * (loops - min(segment.backprop or loops, loops))
    plan = config.plan()
    flops += context * config.stream.flops(plan, dim)
    dense += context * config.stream.executed_flops(plan, dim)
    schedules = _schedule_size(config)
    if schedules:
        parts["schedules"] = schedules
    parts.update(_bank_sizes(config, config.longest_plan()))
    visited = schedules + sum(_bank_sizes(config, plan).values())
    return Accounting(
        dict(parts),
        active + visited,
        executed + visited,
        flops / context,
        dense / context,
        truncated / context,
    )


def _norm_size(norm: Any, dim: int, gain: bool) -> int:
    return 0 if norm is None else norm.num_parameters(dim, gain)


def _segment_norms(config: ModelConfig, segment: SegmentConfig) -> int:
    size = _norm_size(config.norm_of(segment), config.dim, config.norm_gains(segment))
    return 2 * sum(config.placement_of(segment)) * size


def _out_norm_size(config: ModelConfig, segment: SegmentConfig) -> int:
    return _norm_size(config.out_norm_of(segment), config.dim, config.norm_gains(segment))


def _bank_sizes(config: ModelConfig, plan: Plan) -> dict[str, int]:
    """What branches keep for every visit of `plan`."""
    sizes = {}
    for kind in dict.fromkeys(visit.block for visit in plan.visits):
        part = config.blocks[kind].ffn
        if hasattr(part, "bank_parameters"):
            sizes[f"{kind}.routers"] = part.bank_parameters(plan.of_block(kind).depth, config.dim)
    return {name: size for name, size in sizes.items() if size}


def _schedule_size(config: ModelConfig) -> int:
    plan = config.longest_plan()
    learned = sum(
        regulator.num_parameters(plan.part(segments), config.dim)
        for regulator, segments in config.acting_regulators()
    )
    return learned + config.stream.num_parameters(plan, config.dim)
