"""Expert parallelism: every rank holds some of the experts, and rows travel to theirs and back.

Shapes: N tokens, k choices a token, E experts, P ranks, M = N k rows sent, R rows received, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from depthkit.kernels.experts.feed_forward import Experts, matmul_dtype, sum_dtype
from depthkit.kernels.experts.rows import combine, copies, sort_by_expert

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def slice_of(num_experts: int, rank: int, size: int) -> slice:
    """The experts of one of `size` ranks.

    Raises:
        ValueError: the experts cannot be divided among so many.
    """
    if num_experts % size:
        divisors = ", ".join(str(n) for n in range(1, num_experts + 1) if num_experts % n == 0)
        raise ValueError(
            f"{num_experts} experts cannot be divided among {size} ranks; they can among {divisors}"
        )
    share = num_experts // size
    return slice(rank * share, (rank + 1) * share)


def parallel(compute: Experts, group: ProcessGroup) -> Experts:
    """`compute` with its experts spread over `group`: the same result and gradients (arXiv:2006.16668).

    Rank r holds the slices `slice_of(E, r, P)` of `gate`, `up` and `down`; `h`, `index` and `weights` are its
    own tokens, as many as it has, with `index` into all E experts. Rows travel in the dtype of the matrix
    products, and a token's contributions are weighted and summed at home, in fp32. The gradients of a rank's
    experts are sums over the tokens of all ranks.

    Every rank must call it equally often, forward and backward, also without tokens. A call waits for the
    device once: the numbers of rows sent and received have to be known to the host.

    Raises:
        ValueError: when called while compiling, or with what `compute` refuses.
    """

    def spread(
        h: Tensor, index: Tensor, weights: Tensor, gate: Tensor | None, up: Tensor, down: Tensor
    ) -> Tensor:
        if torch.compiler.is_compiling():
            raise ValueError("experts spread over ranks cannot be compiled: set train.compile: false")
        sorting = sort_by_expert(index, up.shape[0] * group.size())
        trip = plan(sorting.ends, group)
        x = copies(h.to(matmul_dtype(h)), index.shape[1], sorting)
        x = exchange(x, trip.sent, trip.received, group)
        alone = torch.ones(trip.experts.shape, dtype=sum_dtype(h), device=h.device)
        y = compute(x, trip.experts, alone, gate, up, down)
        return combine(exchange(y, trip.received, trip.sent, group), weights, sorting, h)

    return spread


class Trip(NamedTuple):
    """Where rows go."""

    sent: list[int]
    """Rows for every rank."""
    received: list[int]
    """Rows from every rank."""
    experts: Tensor
    """`[R, 1]` the expert of every row received, counted from this rank's first."""


@torch.no_grad()
def plan(ends: Tensor, group: ProcessGroup) -> Trip:
    """Tell every rank how many rows its experts will get from here: `ends [E]`, of rows sorted by expert."""
    counts = ends.diff(prepend=ends.new_zeros(1)).long()
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts, group=group)
    per_rank = torch.stack([counts, theirs]).view(2, group.size(), -1)
    sent, received = per_rank.sum(-1).tolist()
    own = torch.arange(per_rank.shape[-1], device=ends.device).repeat(group.size())
    experts = own.repeat_interleave(theirs, output_size=sum(received))
    return Trip(sent, received, experts[:, None])


def exchange(rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup) -> Tensor:
    """All-to-all of `rows [M, D]`, `sent[p]` of them to rank p: `[R, D]`; its gradient travels back."""
    return _Exchange.apply(rows, sent, received, group)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup) -> Tensor:
        ctx.way_back = (received, sent, group)
        out = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return exchange(grad, *ctx.way_back), None, None, None
