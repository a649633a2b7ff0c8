"""depthkit as a candidate: a run's config and overrides, built and stepped as a training run does it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from benchmarks.bench.candidate import BETAS, CLIP, DECAY, EPS, LR, Candidate, Measured
from benchmarks.bench.shapes import HEAD_DIM, VOCABULARY, Shape
from depthkit import config as configs
from depthkit.model import Transformer
from depthkit.training.step import forward
from depthkit.training.trainer import Trainer

VARIANTS: dict[str, tuple[str, ...]] = {
    "depthkit": (),
    "depthkit, compiled": ("train.compile=true",),
}
"""What is measured, by name: overrides of the default run."""


def mapping(shape: Shape) -> dict[str, Any]:
    """The run as it would stand in a config file."""
    mixer = {"kind": "gqa", "num_heads": shape.heads, "num_kv_heads": shape.kv_heads, "head_dim": HEAD_DIM}
    block = {"mixer": mixer, "ffn": {"kind": "swiglu", "hidden_dim": shape.hidden}}
    return {
        "model": {
            "dim": shape.dim,
            "vocab_size": VOCABULARY,
            # Norms of other libraries have other epsilons, which must not matter beside the stream's size.
            "embedding_std": 1.0,
            "blocks": {"dense": block},
            "segments": [{"name": "core", "pattern": ["dense"], "repeat": shape.depth}],
        },
        "data": {"sequence_length": shape.length},
        "train": {
            "steps": 10**6,
            "batch_size": shape.batch,
            "lr": LR,
            "optimizer": {"kind": "adamw", "betas": list(BETAS), "eps": EPS, "weight_decay": DECAY},
            "clip": CLIP,
            "precision": shape.precision,
            "device": "cpu",
            "threads": 1,
        },
    }


class Ours(Candidate):
    """A depthkit model from a config.

    Args:
        shape: of the model and the batch.
        overrides: `key=value` strings on top of `mapping`.
    """

    def __init__(self, shape: Shape, overrides: tuple[str, ...] = ()):
        super().__init__(shape)
        raw = mapping(shape)
        for override in overrides:
            raw = configs.apply_override(raw, override)
        self.config = configs.parse(raw)
        self.model: Transformer = Transformer(self.config.model, self.config.seed)
        if self.config.train.compile:
            self.model.compile_blocks()
        no_data: Any = None  # the trainer's loop is not run; steps are taken here, on one batch
        self.trainer = Trainer(self.config, self.model, no_data)
        self._steps = 0

    @property
    def state(self) -> dict[str, Tensor]:
        """The weights, by name."""
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def step(self) -> float:
        """One step of the trainer."""
        self._steps += 1
        return self.trainer.stepper.take([self.batch], self._steps).loss

    def measure(self) -> Measured:
        """See `Candidate`."""
        optimizer = self.trainer.optimizer
        optimizer.zero_grad(set_to_none=True)
        output = forward(self.model.train(), self.batch, 1, self.shape.bf16)
        assert output.loss is not None
        output.loss.backward()
        gradients = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}
        optimizer.zero_grad(set_to_none=True)
        return Measured(float(output.loss.detach()), gradients)
