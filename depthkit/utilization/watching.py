"""See what a module inside a layer reads and returns while one visit runs again.

Shapes: B sequences, T positions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from depthkit.model.block import Block

Seen = Callable[[tuple[Any, ...], dict[str, Any], Any], None]


@contextlib.contextmanager
def watching(layer: nn.Module, modules: Iterable[nn.Module], seen: Seen) -> Iterator[None]:
    """Call `seen(args, kwargs, output)` after every call of these modules of `layer`.

    A compiled block runs as written meanwhile: hooks inside what is compiled never fire.
    """

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        seen(args, kwargs, output)

    compiled = vars(layer).pop("forward", None) if isinstance(layer, Block) else None
    handles = [module.register_forward_hook(hook, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        if compiled is not None:
            vars(layer)["forward"] = compiled


def tensors(value: Any) -> list[Tensor]:
    """All tensors in nested tuples, lists and mappings, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [tensor for item in value for tensor in tensors(item)] if isinstance(value, (tuple, list)) else []


def told(reasons: Mapping[int, str]) -> str:
    """One sentence on the visits that could not be seen."""
    first = min(reasons)
    return f"{len(reasons)} visits, such as {first}: {reasons[first]}"
