"""How many directions the states of a visit fill.

Sources: effective rank Roy and Vetterli 2007; stable rank and participation ratio are the usual counts.

Shapes: N tokens, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from depthkit.utilization.moments import Moments
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Trace
from depthkit.utilization.result import Result, Scalar, Series
from depthkit.utilization.statistics import number

METRICS = {
    "effective_rank": "exp of the entropy of s / sum s, s the singular values of the centred states",
    "stable_rank": "sum s^2 / largest s^2, s the singular values of the centred states",
    "participation_ratio": "(sum s^2)^2 / sum s^4, s the singular values of the centred states",
}


@PROBES.register("effective_rank")
class EffectiveRank(Probe):
    """Effective rank, stable rank and participation ratio of the centred states [N, D] after each visit.

    They come from the D x D covariance, streamed in fp64: two of them for every state, with the first tokens
    apart, since one massive first token is a direction of its own. No rank can exceed the number of tokens
    less one. Each is between 1 and D, and undefined where the states do not vary.
    """

    alike = frozenset({"_width"})

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._first = [Moments() for _ in range(self.depth + 1)]
        self._rest = [Moments() for _ in range(self.depth + 1)]
        self._width = 0

    def see(self, trace: Trace) -> None:
        """Add the states of one micro-batch."""
        mask = trace.batch.mask
        self._width = trace.before[0].shape[-1]
        for row, state in enumerate(trace.states):
            self._first[row].add(state[:, 0][mask[:, 0]])
            self._rest[row].add(state[:, 1:][mask[:, 1:]])

    def compute(self) -> Result:
        """Series after each visit, the embedding's values as scalars, and the number of tokens."""
        result = Result()
        everything = [first + rest for first, rest in zip(self._first, self._rest, strict=True)]
        parts = {"all_tokens": everything, "no_token0": self._rest}
        for aggregation, moments in parts.items():
            ranks = [ranks_of(each) for each in moments]
            for row, (name, definition) in enumerate(METRICS.items()):
                values = [number(rank[row]) for rank in ranks]
                words = f"{definition}, {aggregation}"
                result.per_visit[f"{name}.{aggregation}"] = Series(values[1:], "directions", words)
                result.scalars[f"{name}_embed.{aggregation}"] = Scalar(
                    values[0], f"{words}: before the first visit"
                )
        count = everything[0].count
        result.scalars["effective_rank_tokens"] = Scalar(count, "tokens behind the ranks")
        if count <= self._width:
            reason = f"{count} tokens for width {self._width}: no rank can exceed {max(count - 1, 0)}"
            result.skipped["effective_rank_tokens"] = reason
        return result


def ranks_of(moments: Moments) -> tuple[float, float, float]:
    """Effective rank, stable rank, participation ratio; NaN where nothing varies."""
    undefined = (float("nan"),) * 3
    if moments.count < 2:
        return undefined
    variances = _spectrum(moments.covariance())
    total = variances.sum()
    if not float(total) > 0:
        return undefined
    sizes = variances.sqrt()
    p = sizes / sizes.sum()
    effective = torch.special.entr(p).sum().exp()
    return float(effective), float(total / variances.max()), float(total**2 / variances.square().sum())


def _spectrum(covariance: Tensor) -> Tensor:
    """Eigenvalues [D]; what rounding leaves of a zero is 0, or its root would count as a direction."""
    values = torch.linalg.eigvalsh(covariance)
    noise = len(values) * torch.finfo(values.dtype).eps * values[-1]
    return values.where(values > noise, 0.0)
