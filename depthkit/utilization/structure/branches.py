"""Run a layer with one of its branches silent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn


@contextlib.contextmanager
def silent(layer: nn.Module, paths: Iterable[str]) -> Iterator[None]:
    """The modules at these paths inside `layer` return zeros while the block runs.

    With a path of `Branches` that is an exact skip of the branch: what is added to the stream is that
    module's output, after any norm that follows the branch.
    """
    handles = [layer.get_submodule(path).register_forward_hook(_zeros) for path in paths]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _zeros(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    if isinstance(output, Tensor):
        return torch.zeros_like(output)
    return (torch.zeros_like(output[0]), *output[1:])
