"""What a forward asks of attention, and what a backend has to offer.

Shapes: B batch, T queries, S keys, H heads, K key/value heads, C head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from depthkit.registry import Registry

ATTENTION = Registry("attention backend", "depthkit.kernels.attention")


@dataclass(frozen=True, eq=False)
class Request:
    """Which queries see which keys, and on what they are computed; the same for all layers of a kind.

    The queries are the last T of S positions: T = S in training, T < S when earlier keys are in a cache.

    Raises:
        ValueError: `documents` does not cover all S positions.
    """

    batch: int
    """B."""
    queries: int
    """T."""
    keys: int
    """S."""
    head_dim: int
    """C."""
    device: torch.device
    """Where q, k and v are."""
    dtype: torch.dtype
    """What v has; autocast included."""
    causal: bool = True
    """A query sees only itself and what came before."""
    window: int | None = None
    """A query sees keys less than this many positions away, itself included."""
    documents: Tensor | None = None
    """`[B, S]` document ids; a query sees keys of its own document only."""
    grad: bool = False
    """Whether a backward may follow."""
    compiled: bool = False
    """Whether a compiler fuses what a backend does one by one."""

    def __post_init__(self) -> None:
        wanted = (self.batch, self.keys)
        if self.documents is not None and self.documents.shape != wanted:
            raise ValueError(
                f"documents: shape {list(self.documents.shape)}, but attention over {self.keys} positions of "
                f"{self.batch} sequences needs {list(wanted)}, cached positions included"
            )

    @property
    def start(self) -> int:
        """Position of the first query."""
        return self.keys - self.queries

    @property
    def masked(self) -> bool:
        """Whether more than `causal` restricts what is seen."""
        return self.documents is not None or (self.window is not None and self.window < self.keys)


class Backend:
    """A way to compute attention; every method is static, what differs between forwards is the pattern."""

    priority: ClassVar[int] = 0
    """`auto` asks the highest first."""

    @staticmethod
    def available() -> str | None:
        """Why this process cannot use it at all, or None."""
        return None

    @staticmethod
    def refuses(request: Request) -> str | None:
        """Why it cannot do this request, or None."""
        return None

    @staticmethod
    def defers(request: Request) -> str | None:
        """Why `auto` should prefer a backend of lower priority here, or None."""
        return None

    @staticmethod
    def prepare(request: Request) -> Any:
        """The pattern all layers share, made once a forward, outside what is compiled."""
        raise AssertionError("a backend implements prepare")

    @staticmethod
    def attend(q: Tensor, k: Tensor, v: Tensor, pattern: Any, scale: float) -> Tensor:
        """softmax(q k^T scale, where seen) v: `[B, H, T, C]`, `[B, K, S, C]` twice `-> [B, H, T, C]`."""
        raise AssertionError("a backend implements attend")
