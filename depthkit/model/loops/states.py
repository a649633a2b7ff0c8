"""What the stream of a looped segment starts as.

Shapes: B batch, T time, D width.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from depthkit.model.init import stream_seed
from depthkit.model.loops.registries import STATES
from depthkit.registry import Spec


class Noise(NamedTuple):
    """Where a random initial state comes from.

    `seed` belongs to one micro-batch of training, so that recomputation, a resumed run and all ranks draw the
    same; None is evaluation, in which every sequence gets the same noise at the same position. `start` is the
    position of the first token, for decoding with a cache. `rows` says which sequences of the micro-batch
    these are where it is divided among ranks: the number of the first one, and how many there are in all.
    """

    seed: int | None = None
    start: int = 0
    rows: tuple[int, int] | None = None


EVALUATION = Noise()
"""The same noise for every sequence."""


@STATES.register("embedding")
class FromInput:
    """The segment's own input, so that one loop equals a plain stack."""

    equation = "h_0 = e"
    source = "arXiv:1807.03819"
    is_input: ClassVar[bool] = True

    def __init__(self, config: Any):
        self.config = config

    def __call__(self, e: Tensor, noise: Noise) -> Tensor:
        """`[B, T, D]`."""
        return e


@STATES.register("zero")
class Zero:
    """Zeros; the input must then be injected."""

    equation = "h_0 = 0"
    source = "arXiv:2502.05171 (a choice of its code)"
    is_input: ClassVar[bool] = False

    def __init__(self, config: Any):
        self.config = config

    def __call__(self, e: Tensor, noise: Noise) -> Tensor:
        """`[B, T, D]`."""
        return torch.zeros_like(e)


@STATES.register("normal")
class TruncatedNormal:
    """Random, cut at three standard deviations, as Huginn starts; the input must then be injected."""

    equation = "h_0 ~ scale TruncN(0, 2/5) per feature, i.e. sqrt(d) TruncN(0, 2/(5 d))"
    source = "arXiv:2502.05171"
    is_input: ClassVar[bool] = False

    class Config(Spec):
        """Settings of `normal`."""

        scale: float = Field(1.0, gt=0)
        """Multiplies the standard deviation sqrt(2/5) = 0.63."""

    def __init__(self, config: Any):
        self.std = config.scale * 0.4**0.5

    def __call__(self, e: Tensor, noise: Noise) -> Tensor:
        """`[B, T, D]`, drawn on the CPU so that every device starts alike."""
        batch, time, dim = e.shape
        first, rows = (0, 1) if noise.seed is None else noise.rows or (0, batch)
        seed = stream_seed(0, "initial state") if noise.seed is None else noise.seed
        generator = torch.Generator().manual_seed(seed)
        # By the inverse distribution function: values come one after another, so that more tokens leave those
        # of the first as they are, which drawing again what lies outside would not.
        edge = math.erf(3 / 2**0.5)
        drawn = torch.empty(rows, noise.start + time, dim).uniform_(-edge, edge, generator=generator)
        drawn = drawn.erfinv_() * (2**0.5 * self.std)
        own = drawn[first : first + batch, noise.start :]
        return own.to(e).expand(batch, -1, -1).contiguous()
