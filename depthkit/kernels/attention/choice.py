"""Which backend answers a request, and why the others do not."""

from __future__ import annotations

import functools
import logging
from typing import Any, NamedTuple

from torch import Tensor

from depthkit.kernels.attention.base import ATTENTION, Backend, Request
from depthkit.registry import unknown

log = logging.getLogger(__name__)


class Prepared(NamedTuple):
    """A backend and the pattern it made for one forward."""

    backend: type[Backend]
    pattern: Any


class Verdict(NamedTuple):
    """What `auto` thinks of one backend for one request."""

    name: str
    usable: bool
    """Whether it could answer at all."""
    reason: str | None
    """Why it was passed over; None for the backend that `auto` picks."""


def names() -> list[str]:
    """What a config may say: `auto` and every backend."""
    return ["auto", *ATTENTION.names()]


def survey(request: Request) -> list[Verdict]:
    """Every backend in `auto`'s order of preference; exactly one has no reason against it."""
    ranked = sorted(ATTENTION.names(), key=lambda name: -ATTENTION.get(name).priority)
    verdicts: list[Verdict] = []
    picked: str | None = None
    for name in ranked:
        backend = ATTENTION.get(name)
        obstacle = backend.available() or backend.refuses(request)
        reason = obstacle or backend.defers(request) or (picked and f"{picked} comes first")
        verdicts.append(Verdict(name, obstacle is None, reason))
        picked = picked or (name if reason is None else None)
    return verdicts


def prepare(name: str, request: Request) -> Prepared:
    """Choose the backend `name` (`auto`: the best here) and make its pattern.

    Raises:
        ValueError: unknown name, or a backend that cannot answer this request; says why and which can.
    """
    backend = ATTENTION.get(_auto(request) if name == "auto" else _checked(name, request))
    return Prepared(backend, backend.prepare(request))


def attend(q: Tensor, k: Tensor, v: Tensor, prepared: Prepared, scale: float) -> Tensor:
    """Attention of q `[B, H, T, C]` over k and v `[B, K, S, C]`: `[B, H, T, C]`."""
    return prepared.backend.attend(q, k, v, prepared.pattern, scale)


def _checked(name: str, request: Request) -> str:
    if name not in ATTENTION.names():
        raise ValueError(unknown("attention backend", name, names()))
    backend = ATTENTION.get(name)
    reason = backend.available() or backend.refuses(request)
    if reason is not None:
        usable = ", ".join(["auto", *(verdict.name for verdict in survey(request) if verdict.usable)])
        raise ValueError(f"attention backend {name!r} cannot be used here: {reason}. Usable here: {usable}.")
    return name


def _auto(request: Request) -> str:
    verdicts = survey(request)
    picked = next(verdict.name for verdict in verdicts if verdict.reason is None)
    others = "; ".join(f"{name}: {reason}" for name, _, reason in verdicts if reason is not None)
    _say(f"attention backend auto is {picked} ({others})")
    return picked


@functools.cache
def _say(sentence: str) -> None:
    """Log a sentence the first time it is said."""
    log.info(sentence)
