"""What every module reads and writes in one forward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Event:
    """One call of one module: when it began and ended, and copies of the tensors that went in and out."""

    path: str
    module: nn.Module
    began: int
    ended: int
    read: list[Tensor]
    wrote: list[Tensor]
    output: Any

    def holds(self, other: Event) -> bool:
        """Whether `other` ran inside this call."""
        return self.began < other.began and other.ended < self.ended


@contextlib.contextmanager
def recording(named: Iterable[tuple[str, nn.Module]]) -> Iterator[list[Event]]:
    """Record every call of the named modules while the block runs, in the order in which calls end."""
    events: list[Event] = []
    open_calls: list[tuple[int, list[Tensor]]] = []
    clock = iter(range(2**62))
    paths = {module: path for path, module in named}

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        open_calls.append((next(clock), copies((args, kwargs))))

    def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        began, read = open_calls.pop()
        events.append(Event(paths[module], module, began, next(clock), read, copies(output), output))

    handles: list[Any] = []
    try:
        for module in paths:
            handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(module.register_forward_hook(after, with_kwargs=True))
        yield events
    finally:
        for handle in handles:
            handle.remove()


def copies(value: Any) -> list[Tensor]:
    """Copies of all tensors in nested tuples, lists and mappings, in order."""
    if isinstance(value, Tensor):
        return [value.detach().clone()]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [tensor for item in value for tensor in copies(item)] if isinstance(value, (tuple, list)) else []
