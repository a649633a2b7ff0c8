"""How far a visit is from doing nothing to small changes: its Jacobian against the identity.

Sources: the quantity of arXiv:2603.15389, here of the whole map, norm before average and without a trend in
the width; Hutchinson's estimate of a Frobenius norm.

Shapes: B sequences, T positions, D width, M probes, N sequences of the evaluation.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from depthkit.registry import Spec
from depthkit.utilization.accumulators import Total
from depthkit.utilization.draws import fingerprints, rademacher, single_tokens
from depthkit.utilization.linearised import Linearised, NotDifferentiable, reason_against
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Trace
from depthkit.utilization.result import Result, Series
from depthkit.utilization.statistics import Sample, bootstrap, numbers
from depthkit.utilization.table import TokenTable, series

FORWARD, BACKWARD, TWICE = 1, 2, 4
"""Layer evaluations of a visit, of a product J^T v, and of a product J u."""
ADJOINT = 1e-3
"""Relative difference that rounding may make between |A^T u|^2 and <A A^T u, u>."""
DISTANCE, TOKEN, TOP = "jacobian_distance", "jacobian_token_distance", "jacobian_top_singular_value"


@PROBES.register("jacobian")
class Jacobian(Probe):
    """Distance of a visit's Jacobian J = d h_out / d h_in from the identity, of raw residual states in fp32.

    `jacobian_distance` is ||J - I||_F / sqrt(T D), J over all positions and features of one sequence, from
    products (J - I)^T v with random signs v: unbiased in the square, so sequences are averaged there (`rms`).
    `jacobian_token_distance` is the same of the D x D blocks J_tt of single tokens, over sqrt(D): what a
    token does to itself. `jacobian_top_singular_value` is the largest singular value of J - I of a sequence
    by power iteration, so a lower bound; it needs J u, which fused attention does not give, and computes
    attention from its parts. Without token 0 means without changes of token 0 at the input.

    The experts of a mixture stay those that were chosen: J does not see that a change could choose others.
    Random signs depend on the tokens of a sequence alone, and are the same for all visits.
    """

    class Config(Spec):
        """Settings of `jacobian`."""

        probes: int = Field(8, ge=1)
        """Random directions a sequence; each costs one backward pass a visit."""
        token_probes: int = Field(8, ge=0)
        """Random single tokens a sequence for the blocks J_tt; 0 leaves them out."""
        iterations: int = Field(8, ge=0)
        """Steps of the power iteration for the largest singular value; 0 leaves it out."""

    alike = frozenset({"_reasons"})

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._seeds = fingerprints(context.sequences, context.seed)
        self._whole, self._token = self.table(self.depth), self.table(self.depth)
        self._top = Total(self.depth, len(context.sequences))
        self._reasons: dict[str, str] = {}

    def see(self, trace: Trace) -> None:
        """Probe every visit of one micro-batch."""
        if trace.before[0].dtype not in (torch.float32, torch.float64):
            kind = str(trace.before[0].dtype).removeprefix("torch.")
            self._reasons[DISTANCE] = f"{kind} rounds J - I away: load the model in float32"
            return
        signs = self._signs(trace)
        for visit in range(self.depth):
            self._probe(trace, visit, signs)

    def _probe(self, trace: Trace, visit: int, signs: Tensor) -> None:
        measures = {DISTANCE: self._frobenius} | ({TOP: self._spectral} if self.config.iterations else {})
        for name, measure in measures.items():
            if not {name, DISTANCE} & set(self._reasons):
                reason = reason_against(partial(measure, trace, visit, signs))
                if reason:
                    self._reasons[name] = f"visit {visit}: {reason}"

    def _signs(self, trace: Trace) -> Tensor:
        """[M, B, T, D]; the same for all visits."""
        count = max(self.config.probes, self.config.token_probes)
        width = trace.before[0].shape[-1]
        return rademacher(self._seeds[trace.rows], trace.batch.mask, width, count).to(trace.before[0].dtype)

    def _frobenius(self, trace: Trace, visit: int, signs: Tensor) -> None:
        config, mask = self.config, trace.batch.mask
        found = Linearised(trace, visit)
        self._count(trace, FORWARD + BACKWARD * (config.probes + config.token_probes))
        squares = torch.zeros(mask.shape, dtype=torch.float64, device=mask.device)
        for v in signs[: config.probes]:
            squares += (found.pull(v) - v).double().square().mean(-1)
        self._whole.add(visit, trace.rows, squares / config.probes, mask)
        alone = single_tokens(self._seeds[trace.rows], mask, config.token_probes)
        for v, token in zip(signs, alone, strict=False):
            v = v * token[..., None]
            self._token.add(visit, trace.rows, (found.pull(v) - v).double().square().mean(-1), token)

    def _spectral(self, trace: Trace, visit: int, signs: Tensor) -> None:
        found, real = Linearised(trace, visit, twice=True), trace.batch.mask[..., None]
        steps = self.config.iterations
        self._count(trace, FORWARD + BACKWARD + steps * (BACKWARD + TWICE) + BACKWARD)
        u = _unit(signs[0])
        for _ in range(steps):
            pulled = (found.pull(u) - u) * real
            pushed = (found.push(pulled) - pulled) * real
            _check_adjoint(pushed, pulled, u)
            u = _unit(pushed)
        size = ((found.pull(u) - u) * real).double().flatten(1).norm(dim=1)
        self._top.add((visit, trace.rows), size.cpu().numpy())

    def _count(self, trace: Trace, evaluations: float) -> None:
        self.context.count(len(trace.batch), evaluations)

    def compute(self) -> Result:
        """Series by visit; None with the reason where a derivative is missing."""
        result = Result(skipped=dict(self._reasons))
        config, missing = self.config, set(self._reasons)
        words = (
            "||J - I||_F / sqrt(T D) of the visit's map of a whole sequence, root mean square over sequences"
        )
        _distances(result, DISTANCE, self._whole, self.context.seed, words, DISTANCE in missing)
        if config.token_probes:
            words = "||J_tt - I||_F / sqrt(D) of a token's own block, root mean square over tokens"
            _distances(result, TOKEN, self._token, self.context.seed, words, DISTANCE in missing)
        if config.iterations:
            words = f"largest singular value of J - I, at least (after {config.iterations} power iterations)"
            real = self.context.sequences.mask.any(1).cpu().double().numpy()
            counts = np.broadcast_to(real * (not missing & {DISTANCE, TOP}), self._top.values.shape)
            result.per_visit[f"{TOP}.mean"] = series(
                Sample(self._top.values * counts, counts),
                self.context.seed,
                "ratio",
                f"{words}, mean over sequences",
            )
        return result


def _unit(u: Tensor) -> Tensor:
    """Every sequence of u [B, T, D] to norm 1; a zero stays zero."""
    return u / u.flatten(1).norm(dim=1).clamp(min=1e-30)[:, None, None]


def _check_adjoint(pushed: Tensor, pulled: Tensor, u: Tensor) -> None:
    """With A^T u pulled and A A^T u pushed, |A^T u|^2 must be <A A^T u, u>.

    Torch ignores a part that has no second derivative, without an error, where others have one.

    Raises:
        NotDifferentiable: it is not.
    """
    squared, product = float(pulled.double().square().sum()), float((pushed.double() * u.double()).sum())
    if abs(squared - product) > ADJOINT * squared + 1e-12:
        raise NotDifferentiable("no derivative: a part of the visit has no second one, so that J u is wrong")


def _distances(result: Result, name: str, table: TokenTable, seed: int, words: str, missing: bool) -> None:
    for aggregation, sample in {"rms": table.sample, "rms_no_token0": table.sample_no_token0}.items():
        known = Sample(sample.sums, sample.counts * (not missing))
        result.per_visit[f"{name}.{aggregation}"] = _roots(known, seed, words)


def _roots(sample: Sample, seed: int, words: str) -> Series:
    """Roots of the means of a sample, with bootstrap intervals."""
    interval = bootstrap(lambda draws: np.sqrt(sample.means(draws)), sample.sums.shape[-1], seed)
    low, high = (numbers(interval.low), numbers(interval.high)) if interval else (None, None)
    return Series(numbers(np.sqrt(sample.means())), "ratio", words, low, high)
