"""Names for what a training step does, for a profiler's timeline; they are put up only while it runs.

A name is `depthkit: SITE BRANCH`. Inside the visits the site is the visit's key and the branch `norm`,
`mixer`, `ffn`, or `stream` for what lies between; outside there is only a site, such as `head`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.profiler import record_function

from depthkit.model import Transformer
from depthkit.model.block import Site
from depthkit.model.norms.none import NoNorm
from depthkit.model.walk import Walk

PREFIX = "depthkit: "
STEP = "step"
OUTSIDE = ("embed", "embed_norm", "schedules", "final_norm")
"""Modules of the model that are sites of their own."""
BETWEEN, WHOLE = "stream", "block"
"""Branches for what a visit does beside its branches, and for a visit that is compiled as one."""


class Place(NamedTuple):
    """Where time is spent."""

    site: str
    branch: str = ""

    @property
    def label(self) -> str:
        """As it stands in the timeline."""
        return f"{PREFIX}{self.site} {self.branch}".rstrip()


def place_of(label: str) -> Place | None:
    """The place a label names; None for any other event."""
    if not label.startswith(PREFIX):
        return None
    site, _, branch = label.removeprefix(PREFIX).partition(" ")
    return Place(site, branch)


class Labels:
    """Puts labels on a model and its optimiser."""

    def __init__(self, model: Transformer, optimizer: torch.optim.Optimizer):
        self.model, self.optimizer = model, optimizer
        self._visit = ""

    @contextlib.contextmanager
    def up(self) -> Iterator[None]:
        """While the block runs."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(_replaced(Walk, "visit", self._named_visit))
            stack.enter_context(_replaced(self.model.head, "loss", _labelled(Place("head"))))
            for method in ("zero_grad", "step"):
                stack.enter_context(_replaced(self.optimizer, method, _labelled(Place("optimizer"))))
            for name in OUTSIDE:
                stack.enter_context(_hooked(getattr(self.model, name), partial(Place, name)))
            for layer in range(len(self.model.layers)):
                for module, branch in self._branches(layer):
                    stack.enter_context(_hooked(module, partial(self._place, branch)))
            yield

    def _place(self, branch: str) -> Place:
        return Place(self._visit, branch)

    def _branches(self, layer: int) -> Iterator[tuple[nn.Module, str]]:
        """Modules of a layer with their branches; none of a compiled block, which hooks would break."""
        block = self.model.block(layer)
        for site in () if _compiled(block) else (block.mixer, block.ffn):
            assert isinstance(site, Site)
            yield site.branch, site.role
            for norm in (site.before, site.after_branch, site.after_add):
                if not isinstance(norm, NoNorm):
                    yield norm, "norm"

    def _named_visit(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def visit(walk: Walk, visit: Any, *args: Any, **kwargs: Any) -> Any:
            self._visit = str(visit.key)
            branch = WHOLE if _compiled(self.model.block(visit.layer)) else BETWEEN
            with record_function(Place(self._visit, branch).label):
                return plain(walk, visit, *args, **kwargs)

        return visit


def _compiled(block: nn.Module) -> bool:
    """`compile_blocks` gives a layer a `forward` of its own."""
    return "forward" in vars(block)


def _labelled(place: Place) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def around(plain: Callable[..., Any]) -> Callable[..., Any]:
        def method(*args: Any, **kwargs: Any) -> Any:
            with record_function(place.label):
                return plain(*args, **kwargs)

        return method

    return around


@contextlib.contextmanager
def _replaced(owner: Any, name: str, make: Callable[[Callable[..., Any]], Any]) -> Iterator[None]:
    """`owner.name` is `make(owner.name)` for a while."""
    own = name in vars(owner)
    plain = getattr(owner, name)
    setattr(owner, name, make(plain))
    try:
        yield
    finally:
        setattr(owner, name, plain) if own else delattr(owner, name)


@contextlib.contextmanager
def _hooked(module: nn.Module, place: Callable[[], Place]) -> Iterator[None]:
    """Calls of `module` have a label."""
    running: list[record_function] = []

    def begin(module: nn.Module, args: Any) -> None:
        label = record_function(place().label)
        label.__enter__()
        running.append(label)

    def end(module: nn.Module, args: Any, output: Any) -> None:
        running.pop().__exit__(None, None, None)

    handles = [module.register_forward_pre_hook(begin), module.register_forward_hook(end, always_call=True)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
