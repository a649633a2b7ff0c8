"""The one place where the residual stream is captured: hooks of our own on every layer call.

`output_hidden_states` is never asked: its last entry is the state after the final norm, and in some
versions it does not see what a hook changed.

Shapes: B sequences, T positions, D width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

STATE_NAMES = ("hidden_states", "state", "x", "h")


@dataclass(frozen=True)
class Call:
    """One visit as the model made it, with a hole where the residual state goes."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    place: int | str

    def __call__(self, state: Tensor) -> Tensor:
        """Run the visit on another state; everything else is as recorded. [B, T, D] -> [B, T, D]."""
        args, kwargs = filled(self.args, self.kwargs, self.place, state)
        return state_of(self.module(*args, **kwargs))


@dataclass
class Capture:
    """What the hooks saw in one forward: the calls, and the state before and after each."""

    calls: list[Call] = field(default_factory=list)
    before: list[Tensor] = field(default_factory=list)
    after: list[Tensor] = field(default_factory=list)


def state_of(output: Any) -> Tensor:
    """The residual state in a layer's output, which is a tensor or a tuple that starts with it.

    Raises:
        ValueError: neither; the message names what was found.
    """
    state = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(state, Tensor) or state.ndim != 3:
        found = f"{type(state).__name__} {list(getattr(state, 'shape', []))}"
        raise ValueError(
            f"a layer returned {found} where one residual state [batch, time, width] was expected"
        )
    return state


def with_state(output: Any, state: Tensor) -> Any:
    """`output` with its residual state replaced and the rest kept."""
    return (state, *output[1:]) if isinstance(output, tuple) else state


def place_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | str:
    """Where a layer call carries the residual state: a position or an argument name.

    Raises:
        ValueError: no argument looks like a residual state.
    """
    for index, value in enumerate(args):
        if _is_state(value):
            return index
    for name in (*STATE_NAMES, *kwargs):
        if _is_state(kwargs.get(name)):
            return name
    shapes = (_shapes(value) for value in (*args, *kwargs.values()))
    found = next((shape for shape in shapes if shape), "no tensor")
    raise ValueError(
        "only a model that carries one residual stream [batch, time, width] can be replayed; "
        f"a layer of this one was called with {found}"
    )


def _shapes(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(list(value.shape))
    inner = [shape for item in value if (shape := _shapes(item))] if isinstance(value, tuple) else []
    return f"({', '.join(inner)})" if inner else ""


def argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int | str) -> Tensor:
    """The argument at `place`."""
    return args[place] if isinstance(place, int) else kwargs[place]


def _is_state(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 3 and value.is_floating_point()


def filled(
    args: tuple[Any, ...], kwargs: dict[str, Any], place: int | str, state: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with another state."""
    if isinstance(place, int):
        return (*args[:place], state, *args[place + 1 :]), kwargs
    return args, {**kwargs, place: state}


@contextlib.contextmanager
def capturing(layers: list[nn.Module]) -> Iterator[Capture]:
    """Record every call of `layers` while the block runs; the hooks are gone afterwards.

    States are copied as the calls happen, so a layer that writes into its input is noticed.

    Raises:
        ValueError: such a layer, or a call without a recognisable state.
    """
    seen = Capture()

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        place = place_of(args, kwargs)
        seen.before.append(argument(args, kwargs, place).clone())
        seen.calls.append(Call(module, *filled(args, kwargs, place, None), place))

    def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        visit = len(seen.after)
        if not torch.equal(argument(args, kwargs, seen.calls[visit].place), seen.before[visit]):
            raise ValueError(_changed(seen.before[visit], visit))
        seen.after.append(state_of(output).clone())

    with hooked(layers, before, after):
        yield seen


def _changed(state: Tensor, visit: int) -> str:
    if not bool(torch.isfinite(state).all()):
        return f"visit {visit} reads a residual state that is not finite: nothing can be measured"
    return f"visit {visit} writes into its own input: its replay would corrupt the recorded states"


@contextlib.contextmanager
def skipping(layers: list[nn.Module], visit: int) -> Iterator[Capture]:
    """Make the model itself pass the state unchanged through its `visit`-th layer call.

    Yields what the calls then read and returned.
    """
    seen = Capture()

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.before.append(argument(args, kwargs, place_of(args, kwargs)).clone())

    def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if len(seen.after) == visit:
            output = with_state(output, seen.before[visit])
        seen.after.append(state_of(output))
        return output

    with hooked(layers, before, after):
        yield seen


@contextlib.contextmanager
def hooked(layers: list[nn.Module], before: Callable[..., Any], after: Callable[..., Any]) -> Iterator[None]:
    """Put both hooks on each distinct layer; a shared layer fires once per visit."""
    handles: list[Any] = []
    try:
        for layer in dict.fromkeys(layers):
            handles.append(layer.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(layer.register_forward_hook(after, with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
