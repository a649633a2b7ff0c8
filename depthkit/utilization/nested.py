"""Nested tuples of tensors, batch first, as one value: what a model carries from visit to visit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def mapped(function: Callable[[Tensor], Any], value: Any) -> Any:
    """`value` with every tensor replaced by `function(tensor)`; what is neither tensor nor tuple stays."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple):
        return rebuilt(value, [mapped(function, item) for item in value])
    return value


def rebuilt(value: tuple[Any, ...], items: Sequence[Any]) -> tuple[Any, ...]:
    """A tuple of the same kind, named or not, with other items."""
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


def joined(values: Sequence[Any]) -> Any:
    """Values of one form as one, their tensors one after another along the batch."""
    first = values[0]
    if isinstance(first, Tensor):
        return torch.cat(list(values))
    if isinstance(first, tuple):
        return rebuilt(first, [joined(items) for items in zip(*values, strict=True)])
    return first


def parted(value: Any, count: int) -> list[Any]:
    """The inverse of `joined` for `count` values of equal size; their tensors are views."""
    if isinstance(value, Tensor):
        return list(value.chunk(count))
    if isinstance(value, tuple):
        columns = [parted(item, count) for item in value]
        return [rebuilt(value, items) for items in zip(*columns, strict=True)] if columns else [value] * count
    return [value] * count


def num_bytes(value: Any) -> int:
    """Bytes of all tensors in it."""
    sizes: list[int] = []
    mapped(lambda tensor: sizes.append(tensor.nbytes), value)
    return sum(sizes)
