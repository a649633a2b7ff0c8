"""What is inside a layer: the residual state between its two branches, and the router of its experts.

Shapes: B sequences, T positions, D width, E experts, k experts a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from depthkit.utilization.structure.events import Event
from depthkit.utilization.structure.layers import returned, state_read

TOLERANCE = 1e-3
"""Relative distance up to which one tensor counts as a multiple of another."""
INTEGERS = (torch.int64, torch.int32)
PARALLEL = "its branches run in parallel, so there is no state between them"
UNKNOWN = "no module inside reads the layer's input plus a branch's output"


@dataclass(frozen=True)
class Router:
    """The module that chooses experts: path inside the layer, E and k (None when it returns no indices)."""

    path: str
    num_experts: int
    top_k: int | None


@dataclass(frozen=True)
class Branches:
    """The two branches of a layer, as paths inside it.

    Attributes:
        middle: the first module that reads the state between them.
        mixer, ffn: the modules whose outputs, perhaps scaled, are added to the stream. Where one of them
            returns zeros, its branch writes nothing.
    """

    middle: str
    mixer: str
    ffn: str


@dataclass(frozen=True)
class Inside:
    """What was found in one layer; `reason` says why it has no `branches`.

    `writers` maps `mixer` and `ffn` to the modules whose outputs, perhaps scaled, are added to the stream:
    where one returns zeros, its branch writes nothing. Layers with parallel branches have them too; it is
    empty where the two cannot be told apart.
    """

    branches: Branches | None
    reason: str | None
    router: Router | None
    writers: Mapping[str, str] = field(default_factory=dict)


def look_inside(layer: Event, inner: list[Event], num_experts: int | None) -> Inside:
    """Examine one call of a layer, given the calls inside it; `num_experts` as the config says."""
    inner = sorted(inner, key=lambda event: event.began)
    branches = find_branches(layer, inner)
    pair = None if branches else _parallel(layer, inner)
    reason = None if branches else PARALLEL if pair else UNKNOWN
    writers = {"mixer": branches.mixer, "ffn": branches.ffn} if branches else _told_apart(pair)
    return Inside(branches, reason, find_router(layer.module, inner, num_experts), writers)


def find_branches(layer: Event, inner: list[Event]) -> Branches | None:
    """A module that reads h_mid, where h_mid - h_in and h_out - h_mid are outputs of modules.

    The first of a module that ran earlier, the second of a later one, each times any number: some models
    scale what a branch adds.
    """
    before, after = state_read(layer), returned(layer)
    for reader in inner:
        for state in _alike(reader.read, before):
            if torch.equal(state, before):
                continue
            mixer = _added(before, state, (e for e in inner if e.ended < reader.began))
            ffn = _added(state, after, (e for e in inner if e.began >= reader.began))
            if mixer and ffn:
                return Branches(reader.path, mixer, ffn)
    return None


def _added(before: Tensor, after: Tensor, events: Iterator[Event]) -> str | None:
    """The event that wrote what, times a number, is added to `before` to give `after`."""
    change = (after.double() - before.double()).flatten()
    rounding = torch.finfo(after.dtype).eps * float(after.double().norm())
    limit = TOLERANCE * float(change.norm()) + rounding
    if float(change.norm()) <= rounding:
        return None
    for event in events:
        for output in _alike(event.wrote, before):
            branch = output.double().flatten()
            size = float(branch @ branch)
            if size and float((change - float(change @ branch) / size * branch).norm()) <= limit:
                return event.path
    return None


def _parallel(layer: Event, inner: list[Event]) -> tuple[Event, Event] | None:
    """The two parts of a layer whose outputs it adds to its input, in the order of their calls."""
    before, after = state_read(layer), returned(layer)
    change = after.double() - before.double()
    children = [e for e in inner if "." not in e.path]
    outputs = [(event, output.double()) for event in children for output in _alike(event.wrote, before)]
    limit = TOLERANCE * float(change.norm()) + torch.finfo(after.dtype).eps * float(after.double().norm())
    for (first, a), (second, b) in combinations(outputs, 2):
        if float((change - a - b).norm()) <= limit:
            return first, second
    return None


def _told_apart(pair: tuple[Event, Event] | None) -> dict[str, str]:
    """Mixer and feed-forward: the one reads the state alone, the other also positions or a mask."""
    alone = [event for event in pair or () if len(event.read) == 1]
    if pair is None or len(alone) != 1:
        return {}
    (ffn,) = alone
    return {"mixer": next(event for event in pair if event is not ffn).path, "ffn": ffn.path}


def _alike(tensors: list[Tensor], state: Tensor) -> list[Tensor]:
    """Tensors with one row of width D a token, as the state has, in its shape."""
    found = (t for t in tensors if t.is_floating_point() and t.numel() == state.numel() and t.ndim)
    return [tensor.reshape(state.shape) for tensor in found if tensor.shape[-1] == state.shape[-1]]


def find_router(layer: nn.Module, inner: list[Event], num_experts: int | None) -> Router | None:
    """The module that returns expert indices (an integer tensor beside one of scores) or expert logits."""
    for event in inner:
        indices = [t for t in event.wrote if t.dtype in INTEGERS and t.ndim > 1]
        scores = [t for t in event.wrote if t.is_floating_point() and t.ndim > 1]
        if indices and scores:
            width: Any = num_experts or max(score.shape[-1] for score in scores)
            return Router(event.path, width, indices[0].shape[-1])
    return _router_by_width(layer, inner, num_experts) if num_experts and num_experts > 1 else None


def _router_by_width(layer: nn.Module, inner: list[Event], num_experts: int) -> Router | None:
    """The first module beside the experts that returns one number for each of them."""
    homes = tuple(f"{home}." for home in _expert_homes(layer, num_experts))
    for event in inner:
        if event.path.startswith(homes) and event.wrote and event.wrote[0].shape[-1] == num_experts:
            return Router(event.path, num_experts, None)
    return None


def _expert_homes(layer: nn.Module, num_experts: int) -> Iterator[str]:
    """Paths of modules that own a list of experts, or a module in which their weights are stacked."""
    for path, module in layer.named_modules():
        listed = isinstance(module, nn.ModuleList) and len(module) == num_experts
        stacked = any(p.ndim == 3 and len(p) == num_experts for p in module.parameters(recurse=False))
        if listed or stacked:
            yield path.rpartition(".")[0]
