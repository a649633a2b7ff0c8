"""One micro-batch's way through a model, visit by visit.

What is carried from visit to visit is the residual stream, and whatever else the model hands on: parallel
streams, the memory of a loop. Probes see the stream; edits move what is carried.

Shapes: B sequences, T positions, D width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from depthkit.utilization.capture import Call, capturing, skipping
from depthkit.utilization.repeats import learn, repeat
from depthkit.utilization.structure import Inside, silent

Aux = dict[str, Tensor]


class Path(ABC):
    """The visits of one recorded forward, each of which can be run on another state.

    `rows` says which sequences of the evaluation it carries.
    """

    rows: slice = slice(None)

    @property
    @abstractmethod
    def depth(self) -> int:
        """Number of visits."""

    @abstractmethod
    def module(self, visit: int) -> nn.Module:
        """The stored layer that a visit runs."""

    @abstractmethod
    def run(self, visit: int, carried: Any, without: Collection[str] = ()) -> tuple[Any, Aux]:
        """Run a visit as recorded on what is carried; `without` branches (`mixer`, `ffn`) that then write 0.

        Raises:
            ValueError: a single branch of this model cannot be told apart; see `inseparable`.
        """

    def inseparable(self, visit: int) -> str | None:
        """Why a single branch of a visit cannot be skipped; None when it can."""
        return None

    def enter(self, visit: int, carried: Any) -> Any:
        """What the model does between the visit before and this one, on this side of a loop's start."""
        return carried

    def leave(self, visit: int, carried: Any) -> Any:
        """What the model does after a visit: the end of a loop, the read-out of a looped segment."""
        return carried

    @abstractmethod
    def repeats(self, run_twice: Callable[[], Any]) -> Any:
        """What `repeated` has to know, from a full forward (`run_twice`) of every sequence twice.

        Raises:
            UnknownArgument: a visit's argument of which it is not known how it goes with the batch.
        """

    @abstractmethod
    def repeated(self, count: int, rules: Any) -> Path:
        """The path of `count` copies of its sequences, one copy after another.

        Args:
            rules: what `repeats` of this or another micro-batch gave.

        Raises:
            UnknownArgument: they do not fit this micro-batch.
        """

    @abstractmethod
    def hooked_skip(self, visit: int, run: Callable[[], Any]) -> Tensor:
        """What a full forward (`run`) gives when a hook makes the model skip a visit; see `reached`."""

    @abstractmethod
    def reached(self, final: Tensor) -> Tensor:
        """What `hooked_skip` gives, from the last stream of a replay."""

    @abstractmethod
    def stream(self, carried: Any) -> Tensor:
        """The residual stream `[B, T, D]`."""

    @abstractmethod
    def with_stream(self, carried: Any, stream: Tensor) -> Any:
        """The same with another residual stream.

        Raises:
            ValueError: the model carries more than one residual stream.
        """


class RecordedPath(Path):
    """The calls that hooks recorded in a full forward of any model; between visits nothing happens.

    Args:
        calls: in order.
        inside: what is known of the inside of the called layers.
    """

    def __init__(self, calls: list[Call], inside: Mapping[nn.Module, Inside] | None = None):
        self.calls, self._inside = calls, dict(inside or {})

    @property
    def depth(self) -> int:
        """Number of calls."""
        return len(self.calls)

    def module(self, visit: int) -> nn.Module:
        """The layer that was called."""
        return self.calls[visit].module

    def run(self, visit: int, carried: Tensor, without: Collection[str] = ()) -> tuple[Tensor, Aux]:
        """Repeat a call on another state, the modules that write the skipped branches returning zeros."""
        call = self.calls[visit]
        if not without:
            return call(carried), {}
        if reason := self.inseparable(visit):
            raise ValueError(f"a single branch of visit {visit} cannot be skipped: {reason}")
        writers = self._inside[call.module].writers
        with silent(call.module, [writers[branch] for branch in without]):
            return call(carried), {}

    def inseparable(self, visit: int) -> str | None:
        """Nothing is known of the layer, or no two modules write to its stream."""
        found = self._inside.get(self.calls[visit].module)
        if found is None:
            return "the inside of its layer was not looked at, since the model brings its own read_out"
        return None if found.writers else found.reason

    def repeats(self, run_twice: Callable[[], Any]) -> list[Any]:
        """How the arguments of every call go with the batch."""
        with capturing([call.module for call in self.calls]) as seen:
            run_twice()
        pairs = zip(self.calls, seen.calls, strict=True)
        return [learn({"": a.args, **a.kwargs}, {"": b.args, **b.kwargs}, "") for a, b in pairs]

    def repeated(self, count: int, rules: list[Any]) -> RecordedPath:
        """The same calls with their arguments repeated."""
        made: dict[int, Tensor] = {}
        calls = []
        for call, rule in zip(self.calls, rules, strict=True):
            kwargs = repeat({"": call.args, **call.kwargs}, rule, count, made)
            calls.append(replace(call, args=kwargs.pop(""), kwargs=kwargs))
        return RecordedPath(calls, self._inside)

    def hooked_skip(self, visit: int, run: Callable[[], Any]) -> Tensor:
        """The state after the last call."""
        with skipping([call.module for call in self.calls], visit) as seen:
            run()
        return seen.after[-1]

    def reached(self, final: Tensor) -> Tensor:
        """The state itself."""
        return final

    def stream(self, carried: Tensor) -> Tensor:
        """The state itself."""
        return carried

    def with_stream(self, carried: Tensor, stream: Tensor) -> Tensor:
        """The other state."""
        return stream
