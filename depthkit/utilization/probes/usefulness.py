"""What a visit does that no linear map of its input could do (after arXiv:2603.15389).

Shapes: B sequences, T positions, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from depthkit.registry import Spec
from depthkit.utilization.draws import halves
from depthkit.utilization.edits import Edit, Replace, skip
from depthkit.utilization.moments import Moments
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Step, Trace
from depthkit.utilization.result import Result, Scalar
from depthkit.utilization.statistics import Sample
from depthkit.utilization.usefulness_scores import by_visit, for_model

ENOUGH = 5
"""Tokens an input feature, below which the fit is noisy and the report says so."""


@PROBES.register("usefulness")
class Usefulness(Probe):
    """Loss with a visit replaced by the best linear map of its input, h_out ~ W h_in + b.

    W and b are fitted on one half of the sequences and the loss is taken on the other: by ridge regression of
    the write h_out - h_in, so that directions without data pass unchanged instead of being erased. The
    penalty is `ridge` times the mean variance of an input feature. The normal equations are streamed in fp64,
    two D x D matrices a visit.

    With L0, L_lin and L_skip the held-out losses of the intact model, with the map, and with the visit
    skipped: U = L_lin / L0; the excess over skipping (L_lin - L0) / (L_skip - L0), undefined where skipping
    does no harm; the share of visits with U > x for each of `thresholds`; and, free of a threshold, the area:
    the mean over visits of log(L_lin / L0) / log(L_skip / L0), clipped to 0..1, where a visit whose skip does
    no harm counts 0.

    With no more tokens than features the map would only repeat what it saw, and nothing is reported.
    """

    class Config(Spec):
        """Settings of `usefulness`."""

        ridge: float = Field(1e-6, gt=0)
        """Penalty of the fit, in units of the mean variance of an input feature."""
        thresholds: list[float] = Field([1.001, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0], min_length=1)
        """A visit counts as useful at x when its U exceeds x; 1.1 is the published one."""

    alike = frozenset({"_note", "_reason"})

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._fit = halves(context.sequences, context.seed)
        self._moments = [Moments() for _ in range(self.depth)]
        self._intact, self._linear, self._skipped = (
            self.table(1),
            self.table(self.depth),
            self.table(self.depth),
        )
        self._reason: str | None = None
        self._note: str | None = None

    def see(self, trace: Trace) -> None:
        """Add the pairs (h_in, h_out - h_in) of the sequences to fit, and the intact loss of the others."""
        self._reason = self._reason or self._check(trace)
        if self._reason:
            return
        held = torch.from_numpy(~self._fit[trace.rows])
        scored = trace.batch.scored.cpu() & held[:, None]
        self._intact.add(0, trace.rows, trace.scores.nats, scored)
        fit = trace.batch.mask & ~held[:, None].to(trace.batch.mask.device)
        for moments, before, after in zip(self._moments, trace.before, trace.after, strict=True):
            x = before[fit].double()
            moments.add(x, after[fit].double() - x)

    def _check(self, trace: Trace) -> str | None:
        """Why no map can be fitted or put in place, or None."""
        mask, width = self.context.sequences.mask.cpu(), trace.before[0].shape[-1]
        tokens = int(mask[torch.from_numpy(self._fit)].sum())
        if tokens <= width:
            return f"{tokens} tokens to fit a linear map of width {width}: needs more than {width}"
        if not bool(self.context.sequences.scored.cpu()[torch.from_numpy(~self._fit)].any()):
            return "no scored token among the held-out sequences"
        if tokens < ENOUGH * width:
            self._note = (
                f"{tokens} tokens for width {width}: the fit is noisy, so that the ratios are too high"
            )
        try:
            for entered, before in zip(trace.entered, trace.before, strict=True):
                trace.path.with_stream(entered, before)
        except ValueError as error:
            return str(error)
        return None

    def edits(self) -> list[Edit]:
        """Each visit replaced by its map, and each visit skipped."""
        if self._reason:
            return []
        maps = [_Affine(moments, self.config.ridge) for moments in self._moments]
        self._moments = []
        name = f"linear fit, ridge {self.config.ridge:g}, seed {self.context.seed}"
        replaced: list[Edit] = [Replace(visit, name, affine) for visit, affine in enumerate(maps)]
        return replaced + [skip(visit) for visit in range(self.depth)]

    def update(self, step: Step) -> None:
        """Add the held-out loss at the end of one altered stream."""
        if step.scores is None:
            return
        held = torch.from_numpy(~self._fit[step.trace.rows])[:, None]
        table = self._linear if isinstance(step.edit, Replace) else self._skipped
        scored = step.trace.batch.scored.cpu() & held
        table.add(step.edit.first, step.trace.rows, step.scores.nats, scored)

    def compute(self) -> Result:
        """Ratios by visit, the threshold curve and the area; None with the reason if not measured."""
        config, held, seed = self.config, ~self._fit, self.context.seed
        tables = (self._intact, self._linear, self._skipped)
        losses = [Sample(t.sample.sums[:, held], t.sample.counts[:, held]) for t in tables]
        result = Result(by_visit(losses, seed), scalars=for_model(losses, config.thresholds, seed))
        result.scalars["usefulness_held_out_sequences"] = Scalar(
            int(held.sum()), "sequences behind the losses"
        )
        if self._reason:
            result.skipped["usefulness"] = self._reason
            return result
        result.samples["usefulness_linear_nats.held_out"] = self._linear.sample
        if self._note:
            result.skipped["usefulness_fit"] = self._note
        return result


class _Affine:
    """h -> h + (h - mean) A + mean write, with A the ridge fit of the write; fp32."""

    def __init__(self, moments: Moments, ridge: float):
        covariance = moments.covariance()
        penalty = max(ridge * float(covariance.diagonal().mean()), torch.finfo(torch.float64).tiny)
        lower = torch.linalg.cholesky(covariance + penalty * torch.eye(len(covariance)).to(covariance))
        self._matrix = torch.cholesky_solve(moments.cross(), lower).float()
        self._mean, self._write = moments.mean_x().float(), moments.mean_y().float()

    def __call__(self, stream: Tensor, rows: slice) -> Tensor:
        """`[B, T, D] -> [B, T, D]`."""
        state = stream.float()
        return (state + (state - self._mean) @ self._matrix + self._write).to(stream.dtype)
