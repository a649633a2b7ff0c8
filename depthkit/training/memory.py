"""What a run will keep in memory, without allocating any of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from depthkit.data import Batch
from depthkit.model import ModelConfig, SegmentConfig, Transformer, account
from depthkit.training.parallel.layout import ONE, Layout
from depthkit.training.run import RunConfig
from depthkit.training.step import forward

BYTES = 4
"""Weights, gradients and optimiser state are fp32."""


@dataclass(frozen=True)
class Memory:
    """Bytes by use. What the libraries take (some 0.4 GB) and fragmentation come on top."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    """What the backward pass of one micro-batch needs kept."""

    @property
    def total(self) -> int:
        """All together."""
        return self.parameters + self.gradients + self.optimizer + self.activations


def estimate(config: RunConfig, bf16: bool, layout: Layout = ONE) -> Memory:
    """Memory of a training step; `model.vocab_size` must be filled in.

    Activations are what PyTorch says it would save, on tensors without storage: of the model with each
    segment laid out once, and what a second layout of each segment adds, for every visit of it (loops without
    gradient keep nothing). Of activation checkpointing, `selective` is not counted. Of several processes each
    has its sequences, and its shards; the layer that is whole for a moment is not counted, nor is that
    experts are spread.
    """
    batch = layout.share(config.train.batch_size)
    config = config.model_copy(update={"train": config.train.model_copy(update={"batch_size": batch})})
    weights = BYTES * account(config.model, config.data.sequence_length).stored // layout.shard
    once = {segment.name: 1 for segment in config.model.segments}
    base = _saved_bytes(config, once, bf16)
    plan = config.model.plan()
    cut = {s.name: plan.loops[s.name] - s.backprop for s in config.model.segments if s.backprop}
    kept = (visit.key for visit in plan.visits if visit.key.loop >= cut.get(visit.key.segment, 0))
    inside, outside = {}, base
    for segment in config.model.segments:
        extra = _saved_bytes(config, {**once, segment.name: 2}, bf16) - base
        inside[segment.name] = extra // len(segment.pattern)
        outside -= extra
    setting = config.train.activation_checkpointing
    insides = [inside[key.segment] for key in kept]
    activations = outside + setting.component(setting).kept(insides, _state_bytes(config))
    states = config.train.optimizer.component.num_states
    return Memory(weights, weights, states * weights, activations)


def _state_bytes(config: RunConfig) -> int:
    """Bytes of what a visit reads: the residual stream or what stands in its place."""
    shape = (config.train.batch_size, config.data.sequence_length, config.model.dim)
    with FakeTensorMode():
        stream = config.model.stream.component(config.model.stream, config.model.dim)
        stream.bank(config.model.plan())
        return sum(part.nbytes for part in tree_leaves(stream.open(torch.zeros(shape))))


def _saved_bytes(config: RunConfig, layouts: dict[str, int], bf16: bool) -> int:
    """Bytes saved for the backward pass when each segment is laid out so many times, weights left out."""
    segments = [_laid_out(segment, layouts[segment.name]) for segment in config.model.segments]
    small: ModelConfig = config.model.model_copy(update={"segments": segments})
    shape = (config.train.batch_size, config.data.sequence_length)
    storages: dict[int, int] = {}
    held: list[Tensor] = []  # keeps storages alive, so that their addresses stay apart

    def pack(tensor: Tensor) -> Tensor:
        held.append(tensor)
        storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with FakeTensorMode(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model = Transformer(small)
        ids = torch.zeros(shape, dtype=torch.int64)
        documents = ids if config.data.document_mask else None
        output: Any = forward(model, Batch(ids, ids, documents, 0), 1, bf16)
        weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    del output
    return sum(size for storage, size in storages.items() if storage not in weights)


def _laid_out(segment: SegmentConfig, count: int) -> SegmentConfig:
    return segment.model_copy(update={"repeat": count, "loops": 1, "shared": True})
