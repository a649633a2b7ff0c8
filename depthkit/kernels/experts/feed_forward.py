"""The feed-forward of an expert, stated once, and the dtypes it runs in.

Shapes: N tokens, k choices a token, M = N k rows, E experts, D width, F hidden width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Experts = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor], Tensor]
"""`(h [N, D], index [N, k], weights [N, k], gate [E, F, D] | None, up [E, F, D], down [E, D, F]) -> y`."""

Multiply = Callable[[Tensor, Tensor], Tensor]
"""`(rows, weight) -> rows @ weight^T`, each row with its own expert's matrix."""


def feed_forward(x: Tensor, gate: Tensor | None, up: Tensor, down: Tensor, multiply: Multiply) -> Tensor:
    """`down(silu(gate x) * up x)`, or `down(gelu(up x))` with the exact GELU where there is no gate."""
    raised = multiply(x, up)
    hidden = F.gelu(raised) if gate is None else F.silu(multiply(x, gate)) * raised
    return multiply(hidden, down)


def matmul_dtype(h: Tensor) -> torch.dtype:
    """What the matrix products run in: the autocast dtype where autocast is on, else the dtype of `h`.

    Expert kernels are not on autocast's lists, so backends cast by hand; float64 stays, as in autocast.
    """
    device = h.device.type
    if h.dtype is torch.float64 or not torch.is_autocast_enabled(device):
        return h.dtype
    return torch.get_autocast_dtype(device)


def sum_dtype(h: Tensor) -> torch.dtype:
    """What the k contributions of a token are summed in: float32, or float64 for float64 input."""
    return torch.promote_types(h.dtype, torch.float32)


def refuse_float64(name: str, h: Tensor) -> None:
    """Raise for float64 input.

    Raises:
        ValueError: names `loop`, the backend that computes in float64.
    """
    if h.dtype is torch.float64:
        raise ValueError(
            f"the {name!r} expert backend does not compute in float64; use 'loop', the float64 reference"
        )
