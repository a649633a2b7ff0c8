"""How far a visit's mean Jacobian is from the identity, as arXiv:2603.15389 and arXiv:2609.32534 measure it.

Shapes: B sequences, T positions, D width, L visits, M directions.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from depthkit.registry import Spec
from depthkit.utilization.accumulators import Totals
from depthkit.utilization.linearised import Linearised, NotDifferentiable, reason_against
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Trace
from depthkit.utilization.result import Result, Series
from depthkit.utilization.statistics import Array, numbers

DISTANCE, DIAGONAL = "mean_jacobian_distance", "mean_jacobian_diagonal"
FORWARD, BACKWARD = 1, 2
"""Layer evaluations of a visit and of a product J^T v."""


@PROBES.register("mean_jacobian")
class MeanJacobian(Probe):
    """Distance of the D x D mean Jacobian from the identity, mean before norm.

    J_mean = mean over sequences and input positions t of sum over output positions t' of
    d h_out[t'] / d h_in[t]. Signed derivatives cancel in the mean, so it looks closer to the identity than
    the Jacobians themselves; `jacobian` takes the norm first. The papers divide the Frobenius norm of
    J_mean - I by D and by sqrt(D); the first falls with the width. Here the norm is Hutchinson's estimate
    from products (J_mean - I)^T v with random signs v, exact when there are at least D directions. The mean
    comes first, so no sequence has a value of its own and there is no interval.
    """

    class Config(Spec):
        """Settings of `mean_jacobian`."""

        directions: int = Field(16, ge=1)
        """Random directions; each costs one backward pass a visit. From D on, all D are taken instead."""

    alike = frozenset({"_reason", "_width"})

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._pulled = Totals()
        self._width = 0
        self._reason: str | None = None

    def see(self, trace: Trace) -> None:
        """Add the products of every visit of one micro-batch."""
        self._width = trace.before[0].shape[-1]
        directions = self._directions()
        for visit in range(self.depth):
            reason = self._reason or reason_against(partial(self._pull, trace, visit, directions))
            self._reason = self._reason or (f"visit {visit}: {reason}" if reason else None)

    def _directions(self) -> Tensor:
        """[M, D]."""
        width, count = self._width, self.config.directions
        generator = torch.Generator().manual_seed(self.context.seed)
        signs = torch.randint(0, 2, (count, width), generator=generator) * 2.0 - 1.0
        return torch.eye(width) * width**0.5 if count >= width else signs

    def _pull(self, trace: Trace, visit: int, directions: Tensor) -> None:
        if trace.before[visit].dtype not in (torch.float32, torch.float64):
            raise NotDifferentiable("short numbers round J - I away: load the model in float32")
        found, real = Linearised(trace, visit), trace.batch.mask[..., None]
        self.context.count(len(trace.batch), FORWARD + BACKWARD * len(directions))
        rows = directions.to(trace.before[visit])
        pulled = [(found.pull(v * real) * real).double().sum((0, 1)) for v in rows]
        self._pulled.add(visit, torch.stack(pulled).cpu())

    def compute(self) -> Result:
        """The norm over D and over sqrt(D), and the mean of the diagonal; None with the reason."""
        result = Result(skipped={DISTANCE: self._reason} if self._reason else {})
        width, count = self._width, len(self._directions())
        norms, diagonal = self._numbers()
        kind = "exact" if count >= width else f"{count} directions"
        words = f"||J_mean - I||_F of the mean Jacobian of a token ({kind}), over"
        result.per_visit = {
            f"{DISTANCE}.over_dim": Series(numbers(norms / width), "ratio", f"{words} the width"),
            f"{DISTANCE}.over_sqrt_dim": Series(
                numbers(norms / width**0.5), "ratio", f"{words} the root of the width"
            ),
            f"{DIAGONAL}.mean": Series(
                numbers(diagonal), "ratio", f"mean of the diagonal of the mean Jacobian ({kind}); 1: identity"
            ),
        }
        return result

    def _numbers(self) -> tuple[Array, Array]:
        """||J_mean - I||_F and the diagonal's mean, by visit."""
        undefined = np.full(self.depth, np.nan)
        if self._reason:
            return undefined, undefined
        directions = self._directions().double()
        sums = torch.stack([self._pulled.values[visit] for visit in range(self.depth)])
        pulled = sums / int(self.context.sequences.mask.sum())
        norms = (pulled - directions).square().sum(-1).mean(-1).sqrt()
        diagonal = (pulled * directions).mean(-1).mean(-1)
        return norms.numpy(), diagonal.numpy()
