"""Full forwards with an edit: for whoever runs the model by itself, such as an evaluation harness.

The edit is replayed from what the intact forward recorded, as in every sweep; no module is removed.

Shapes: B sequences, T positions, D width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from depthkit.utilization.capture import Call, argument, filled, hooked, place_of, with_state
from depthkit.utilization.edits import Edit
from depthkit.utilization.path import RecordedPath
from depthkit.utilization.record import record
from depthkit.utilization.replay import resumed
from depthkit.utilization.sequences import IGNORED, Sequences
from depthkit.utilization.subject import Subject


def final_stream(subject: Subject, batch: Sequences, edit: Edit | None = None) -> Tensor:
    """The residual stream `[B, T, D]` that the head reads after a full forward, with an edit if one is given.

    Raises:
        ValueError: a model that cannot be replayed.
    """
    seen = record(subject, batch)
    return seen.final if edit is None else resumed(seen.path, seen.entered, edit)


def depth_of(subject: Subject) -> int:
    """Number of visits, from a forward of one token.

    Raises:
        ValueError: a model that cannot be replayed.
    """
    with subject.frozen():
        ids = torch.zeros(1, 1, dtype=torch.int64, device=subject.device)
        return record(subject, unscored(ids)).path.depth


def unscored(ids: Tensor) -> Sequences:
    """Windows `[B, T]` of which nothing is scored."""
    return Sequences(ids, torch.full_like(ids, IGNORED), torch.ones_like(ids, dtype=torch.bool))


@contextlib.contextmanager
def editing(subject: Subject, edit: Edit) -> Iterator[None]:
    """Inside, every full forward of the model gives what it gives with the edit, whoever calls it.

    The last visit hands the edited stream to the model's own head, so that whatever follows applies as it
    stands. Caches are turned off: a visit that runs twice would write into one twice.

    Raises:
        ValueError: at once, a model that cannot be replayed; inside, a forward that is given a cache.
    """
    seen = _Seen(subject, edit, depth_of(subject))
    opening = subject.model.register_forward_pre_hook(seen.begin, with_kwargs=True)
    try:
        with hooked(subject.layers, seen.before, seen.after):
            yield
    finally:
        opening.remove()


@dataclass
class _Seen:
    """The calls of the forward at hand, up to the last one."""

    subject: Subject
    edit: Edit
    depth: int
    calls: list[Call] = field(default_factory=list)
    ended: int = 0
    entered: dict[int, Tensor] = field(default_factory=dict)
    replaying: bool = False

    def begin(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A new forward, without a cache."""
        if kwargs.get("past_key_values") is not None:
            raise ValueError(f"{self.subject.name}: edited visits run in full forwards only, without a cache")
        self.calls, self.ended, self.entered = [], 0, {}
        return args, kwargs | self.subject.switched_off

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note a call, and the state where the edit begins."""
        if self.replaying:
            return
        place = place_of(args, kwargs)
        if len(self.calls) == self.edit.first:
            self.entered[self.edit.first] = argument(args, kwargs, place).clone()
        self.calls.append(Call(module, *filled(args, kwargs, place, None), place))

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Give the last call's output the edited state."""
        self.ended += not self.replaying
        if self.replaying or self.ended < self.depth:
            return output
        self.replaying = True
        try:
            return with_state(output, resumed(RecordedPath(self.calls), self.entered, self.edit))
        finally:
            self.replaying = False
