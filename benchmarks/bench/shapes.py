"""The models that are compared: a plain Llama-like stack at a width, a depth and a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from depthkit.data import Batch

VOCABULARY, HEAD_DIM = 4096, 32


@dataclass(frozen=True)
class Shape:
    """Heads of 32 channels, half as many key/value heads, SwiGLU, untied head; `precision` fp32 or bf16."""

    dim: int
    depth: int
    batch: int = 4
    length: int = 256
    precision: str = "fp32"

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.dim // HEAD_DIM

    @property
    def kv_heads(self) -> int:
        """Key/value heads."""
        return max(1, self.heads // 2)

    @property
    def hidden(self) -> int:
        """Feed-forward width, 8/3 of the model's rounded up to a multiple of 8: 176, 344, 688."""
        return -(-8 * self.dim // 24) * 8

    @property
    def tokens(self) -> int:
        """Tokens in a step."""
        return self.batch * self.length

    @property
    def bf16(self) -> bool:
        """Whether matrix products run in bf16."""
        return self.precision == "bf16"

    @property
    def label(self) -> str:
        """For tables."""
        return f"{self.dim} x {self.depth}"

    def at(self, **changes: int | str) -> Shape:
        """The same shape but for `changes`."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def data(self, seed: int = 0) -> Batch:
        """Random tokens to train on."""
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(VOCABULARY, (self.batch, self.length + 1), generator=generator)
        return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), None, 0)


SHAPES = {"dim64": Shape(64, 256), "dim128": Shape(128, 64), "dim256": Shape(256, 16)}
"""What `train_step` measures: as deep as each width is used here."""
PRECISIONS = ("fp32", "bf16")
QUICK = 8
"""Depths are divided by this in quick mode."""
