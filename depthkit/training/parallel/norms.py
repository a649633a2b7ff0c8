"""The norm of gradients, wherever their parts are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The 2-norm of all gradients together, the same on every rank.

    Plain tensors are what every rank has alike; of sharded ones (`DTensor`) every rank has a part.
    """
    norms = [whole(torch.nn.utils.get_total_norm(part)) for part in _by_mesh(gradients)]
    if len(norms) == 1:
        return norms[0]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())


def scale(gradients: Sequence[Tensor], factor: Tensor) -> None:
    """Multiply all gradients in place."""
    for part in _by_mesh(gradients):
        torch._foreach_mul_(part, factor)


def _by_mesh(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Tensors that kernels over many of them may take together."""
    found: dict[Any, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        found[getattr(tensor, "device_mesh", None)].append(tensor)
    return list(found.values())


def local(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def whole(tensor: Tensor) -> Tensor:
    """A tensor as one process would have it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
