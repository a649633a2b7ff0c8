"""Similarity of the representations after any two visits: debiased linear CKA.

Sources: CKA arXiv:1905.00414; the unbiased HSIC (Song et al. 2012) in it arXiv:2010.15327; as an inner
product of U-centred matrices arXiv:1310.2955.

Shapes: N tokens, D width, S = L + 1 states, C rows of a block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from depthkit.registry import Spec
from depthkit.utilization.accumulators import Totals
from depthkit.utilization.draws import choose_tokens
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Trace
from depthkit.utilization.result import Matrix, Result, Scalar, Series
from depthkit.utilization.statistics import Array, numbers

BLOCK = 2**23
"""Entries of U-centred Gram matrices held at once (64 MB)."""


@PROBES.register("cka")
class Cka(Probe):
    """Debiased linear CKA between the states after all pairs of visits, over single tokens.

    With K = X X^T and L = Y Y^T of the same tokens, HSIC_1(K, L) / sqrt(HSIC_1(K, K) HSIC_1(L, L)): 1 for
    states that are equal up to a rotation, a scale and a shift, 0 in expectation for unrelated ones whatever
    the width (the biased estimate tends to 1 when D exceeds N), so single values can fall below 0. Tokens are
    a draw that depends on the tokens of their sequence alone.
    """

    class Config(Spec):
        """Settings of `cka`."""

        max_tokens: int = Field(1024, ge=4)
        """Most tokens to compare; beyond it a draw stands for the rest."""

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._chosen = choose_tokens(context.sequences, config.max_tokens, context.seed)
        self._states = Totals()

    def see(self, trace: Trace) -> None:
        """Keep the chosen tokens' states of one micro-batch."""
        chosen, count = self._chosen[trace.rows], int(self._chosen.sum())
        start = int(self._chosen[: trace.rows.start].sum())
        rows = slice(start, start + int(chosen.sum()))
        for row, state in enumerate(trace.states):
            self._states.add_rows(row, state[chosen.to(state.device)].float(), rows, count)

    def compute(self) -> Result:
        """Matrices over pairs of states, and the series of neighbours, with and without token 0."""
        states = [self._states.values[row] for row in range(self.depth + 1)]
        first = self._chosen.nonzero()[:, 1] == 0
        result = Result()
        kept = {"all_tokens": torch.ones_like(first), "no_token0": ~first}
        for aggregation, which in kept.items():
            index = which.nonzero()[:, 0].to(states[0].device)
            self._add(result, aggregation, debiased_cka([state[index] for state in states]), len(index))
        real = int(self.context.sequences.mask.sum())
        result.scalars["cka_tokens"] = Scalar(len(first), "tokens that CKA compared")
        if len(first) < real:
            result.skipped["cka_tokens"] = f"{len(first)} of {real} tokens compared (max_tokens)"
        return result

    def _add(self, result: Result, aggregation: str, values: Array, count: int) -> None:
        words = f"debiased linear CKA of the states, {aggregation}"
        where = "state: 0 is what the first visit reads, l what the l-th visit gives"
        result.matrices[f"cka.{aggregation}"] = Matrix(values, where, where, "similarity", words)
        result.per_visit[f"cka_previous.{aggregation}"] = Series(
            numbers(np.diagonal(values, 1)),
            "similarity",
            f"{words} after the visit and after the one before it",
        )
        if count < 4:
            result.skipped[f"cka.{aggregation}"] = f"needs 4 tokens, not {count}"


def debiased_cka(states: list[Tensor]) -> Array:
    """[S, S] from S matrices [N, D] of the same tokens; NaN where a state does not vary, or N < 4."""
    count, size = len(states[0]), len(states)
    if count < 4:
        return np.full((size, size), np.nan)
    grams = [_Gram(state) for state in states]
    rows = max(1, BLOCK // (size * count))
    products = torch.zeros(size, size, dtype=torch.float64)
    for start in range(0, count, rows):
        block = torch.stack([gram.u_centred(start, start + rows).flatten() for gram in grams])
        products += (block @ block.T).cpu()
    own = products.diagonal().clamp(min=0)
    similarity = products / (own[:, None] * own[None]).sqrt()
    return similarity.where(similarity.isfinite(), torch.nan).numpy()


class _Gram:
    """U-centred rows of X X^T with a zero diagonal; only X is held, in its own number type.

    HSIC_1 is the sum of products of two such matrices over N (N - 3), which cancels in CKA, as do a shift and
    a scale of X: both are taken out first, so that fp64 sees numbers near 1.
    """

    def __init__(self, state: Tensor):
        x = state.double()
        x = x - x.mean(0)
        spread = x.square().sum(1).mean().sqrt()
        varies = spread > 1e-7 * state.double().norm(dim=1).mean()
        self._x = torch.where(varies, x / spread, 0.0).to(state.dtype)
        x = self._x.double()
        self._sums = x @ x.sum(0) - x.square().sum(1)

    def u_centred(self, start: int, stop: int) -> Tensor:
        """[C, N] rows from `start` to `stop`."""
        count, x = len(self._x), self._x.double()
        part = x[start:stop] @ x.T
        part = part - (self._sums[start:stop, None] + self._sums[None]) / (count - 2)
        part = part + self._sums.sum() / ((count - 1) * (count - 2))
        here = torch.arange(len(part), device=part.device)
        part[here, here + start] = 0.0
        return part
