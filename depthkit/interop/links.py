"""Which tensor of a Hugging Face model is which of ours.

Shapes: E experts, F hidden width of an expert, D width, H heads, C channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Link(NamedTuple):
    """One tensor of theirs and the tensors of ours that it holds."""

    theirs: str
    ours: tuple[str, ...]
    join: Callable[[Sequence[Tensor]], Tensor]
    split: Callable[[Tensor], Sequence[Tensor]]


def same(theirs: str, ours: str) -> Link:
    """A tensor that is the same on both sides."""
    return Link(theirs, (ours,), lambda parts: parts[0], lambda whole: [whole])


def zeros(theirs: str) -> Link:
    """A tensor of theirs that we do not have, and that must be zero."""
    return Link(theirs, (), lambda parts: torch.zeros(()), lambda whole: [])


def fused_experts(theirs: str, *ours: str) -> Link:
    """Ours `[E, F, D]` each, theirs one after the other along F."""
    return Link(
        theirs, ours, lambda parts: torch.cat(list(parts), 1), lambda whole: whole.chunk(len(ours), 1)
    )


def fused_heads(theirs: str, head_dim: int, *ours: str) -> Link:
    """Ours `[H C, ...]` each, theirs `[H, parts, C, ...]` flattened: the parts of one head side by side."""

    def join(parts: Sequence[Tensor]) -> Tensor:
        return torch.stack([part.unflatten(0, (-1, head_dim)) for part in parts], 1).flatten(0, 2)

    def split(whole: Tensor) -> Sequence[Tensor]:
        return [part.flatten(0, 1) for part in whole.unflatten(0, (-1, len(ours), head_dim)).unbind(1)]

    return Link(theirs, ours, join, split)


def to_theirs(links: Iterable[Link], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors from ours, every one of which must have a link; without those that are zero."""
    links = list(links)
    linked = {name for link in links for name in link.ours}
    assert linked == set(state), f"without a link: {sorted(linked ^ set(state))}"
    return {
        link.theirs: link.join([state[name] for name in link.ours]).clone() for link in links if link.ours
    }


def to_ours(links: Iterable[Link], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors from theirs.

    Raises:
        ValueError: a tensor of theirs that we have no place for, or one that is not there; or one that is not
            zero where we have none.
    """
    links = list(links)
    linked = {link.theirs for link in links}
    for names, words in (
        (set(state) - linked, "depthkit has no place for"),
        (linked - set(state), "are missing"),
    ):
        if names:
            raise ValueError(f"{len(names)} weights {words}, such as {min(names)}")
    found: dict[str, Tensor] = {}
    for link in links:
        if not link.ours and bool(state[link.theirs].any()):
            raise ValueError(f"{link.theirs} is not zero, and depthkit has no such bias")
        found |= zip(link.ours, (part.clone() for part in link.split(state[link.theirs])), strict=True)
    return found
