"""How fast the attention and expert backends are: forward, and forward and backward together; for gpu_check.

Shapes: B batch, T positions, H heads, K key/value heads, C head_dim, N tokens, E experts, D width, F hidden.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from depthkit.kernels import experts
from depthkit.kernels.attention import ATTENTION, Request, attend, prepare

Row = dict[str, Any]
FAILURES = (RuntimeError, ValueError, TypeError, AssertionError, ImportError)
"""What kernels raise: refusals, out of memory, what their launchers find wrong, and what they lack."""
EAGER_LIMIT = 4096
"""Longest sequence for the backend that forms all probabilities."""


class Sizes(NamedTuple):
    """What is measured."""

    device: torch.device
    dtype: torch.dtype
    lengths: tuple[int, ...]
    tokens: int
    heads: tuple[int, int, int]
    """H, K, C."""
    moe: tuple[int, int, int]
    """E, D, F."""
    rounds: int


def sizes_here() -> Sizes:
    """Sizes that fill a GPU for a few seconds, or tiny ones where there is none."""
    if torch.cuda.is_available():
        lengths, heads, moe = (1024, 4096, 16384), (16, 4, 64), (16, 1024, 2048)
        return Sizes(torch.device("cuda"), torch.bfloat16, lengths, 16384, heads, moe, 10)
    return Sizes(torch.device("cpu"), torch.float32, (64, 128), 128, (4, 2, 16), (4, 32, 64), 3)


def measurements(sizes: Sizes) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """Every measurement: what it is, and a function that makes it."""
    for length, documents, name in itertools.product(sizes.lengths, (1, 8), ATTENTION.names()):
        what: Row = {"part": "attention", "backend": name, "length": length, "documents": documents}
        yield what, lambda w=what: attention_row(w, sizes)
    for name in sorted(experts.BACKENDS):
        what = {"part": "experts", "backend": name, "length": None, "documents": None}
        yield what, lambda w=what: expert_row(w, sizes)


def all_rows(sizes: Sizes, deadline: float) -> Iterator[Row]:
    """Every row of the table; what cannot run, and what comes after the deadline, says why."""
    for what, measure in measurements(sizes):
        if time.monotonic() > deadline:
            yield what | {"not_run": "the time was up"}
            continue
        try:
            yield measure()
        except FAILURES as problem:
            yield what | {"not_run": str(problem).strip().splitlines()[0]}


def attention_row(what: Row, sizes: Sizes) -> Row:
    """One backend at one length, causal, on plain rows or on rows of packed documents."""
    length, (heads, kv_heads, width) = what["length"], sizes.heads
    batch = max(1, sizes.tokens // length)
    if what["backend"] == "eager" and length > EAGER_LIMIT:
        raise ValueError(f"forms all probabilities, so it is measured up to {EAGER_LIMIT} positions only")
    documents = None
    if what["documents"] > 1:
        ids = torch.arange(length, device=sizes.device) * what["documents"] // length
        documents = ids.expand(batch, -1).contiguous()
    request = Request(batch, length, length, width, sizes.device, sizes.dtype, documents=documents, grad=True)
    pattern = prepare(what["backend"], request)
    leaves = [leaf(sizes, batch, h, length, width) for h in (heads, kv_heads, kv_heads)]
    return timed(what, batch * length, lambda: attend(*leaves, pattern, width**-0.5), leaves, sizes)


def expert_row(what: Row, sizes: Sizes) -> Row:
    """One backend with two experts a token, gated."""
    count, width, hidden = sizes.moe
    index = torch.rand(sizes.tokens, count, device=sizes.device).topk(2).indices
    weights = torch.full((sizes.tokens, 2), 0.5, device=sizes.device)
    shapes = [(sizes.tokens, width), (count, hidden, width), (count, hidden, width), (count, width, hidden)]
    h, gate, up, down = leaves = [leaf(sizes, *shape, scale=shape[-1] ** -0.5) for shape in shapes]
    compute = experts.backend(what["backend"])
    return timed(what, sizes.tokens, lambda: compute(h, index, weights, gate, up, down), leaves, sizes)


def leaf(sizes: Sizes, *shape: int, scale: float = 1.0) -> Tensor:
    """A random tensor that wants a gradient."""
    return (torch.randn(shape, device=sizes.device) * scale).to(sizes.dtype).requires_grad_()


def timed(what: Row, tokens: int, forward: Callable[[], Tensor], leaves: list[Tensor], sizes: Sizes) -> Row:
    """`what` with the time of a forward, and of a forward and backward together."""

    def both() -> None:
        y = forward()
        torch.autograd.grad(y, leaves, torch.ones_like(y))

    with torch.no_grad():
        alone = milliseconds(forward, sizes)
    together = milliseconds(both, sizes)
    speed = {"tokens_per_second": 1e3 * tokens / together}
    return what | {"tokens": tokens, "forward_ms": alone, "forward_backward_ms": together} | speed


def milliseconds(compute: Callable[[], Any], sizes: Sizes) -> float:
    """Median time of `compute` after three calls that are not counted; by CUDA events on a GPU."""
    for _ in range(3):
        compute()
    clock = _gpu_milliseconds if sizes.device.type == "cuda" else _cpu_milliseconds
    return statistics.median(clock(compute) for _ in range(sizes.rounds))


def _gpu_milliseconds(compute: Callable[[], Any]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    compute()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def _cpu_milliseconds(compute: Callable[[], Any]) -> float:
    began = time.perf_counter()
    compute()
    return 1e3 * (time.perf_counter() - began)
