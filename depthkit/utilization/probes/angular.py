"""Angular distance over a block of n visits (Gromov et al., arXiv:2403.17887).

Shapes: B sequences, T positions, D width, L visits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from depthkit.utilization.accumulators import Total
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Trace
from depthkit.utilization.result import Matrix, Result
from depthkit.utilization.table import series

CHUNK = 2**20
"""Elements of a temporary: it should stay in the cache."""
CONVENTIONS = {
    "last_token": "at the last real token of each sequence",
    "all_tokens": "mean over all real tokens",
}


@PROBES.register("angular")
class Angular(Probe):
    """Angle between the states before visit l and before visit l + n, in units of pi, for all n = 1..L.

    `last_token` reads only the last real token of each sequence (the published convention), `all_tokens`
    every one. Angles are 2 atan2(|u - v|, |u + v|): an arccos turns rounding into NaN for equal states.
    """

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._single = {name: self.table(self.depth) for name in CONVENTIONS}
        self._sums = {name: Total(self.depth, self.depth) for name in CONVENTIONS}
        self._counts = {name: Total(self.depth, self.depth) for name in CONVENTIONS}

    def see(self, trace: Trace) -> None:
        """Add every pair of states of one micro-batch."""
        mask = trace.batch.mask
        last = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
        masks = {"last_token": last, "all_tokens": mask}
        units = torch.stack([F.normalize(state.float(), dim=-1, eps=1e-30) for state in trace.states])
        real = torch.stack([state.abs().amax(-1) > 0 for state in trace.states])
        step = max(1, CHUNK // units[0].numel())
        for size in range(1, self.depth + 1):
            for start in range(0, self.depth + 1 - size, step):
                first = slice(start, min(start + step, self.depth + 1 - size))
                end = slice(first.start + size, first.stop + size)
                angles, valid = angle_over_pi(units[first], units[end]), real[first] & real[end]
                for name, wanted in masks.items():
                    self._add(name, trace.rows, (first, size), angles.double(), valid & wanted)

    def _add(self, name: str, rows: slice, block: tuple[slice, int], angles: Tensor, valid: Tensor) -> None:
        first, size = block
        self._sums[name].add((first, size - 1), angles.where(valid, 0.0).sum((1, 2)).cpu().numpy())
        self._counts[name].add((first, size - 1), valid.sum((1, 2)).cpu().numpy())
        if size == 1:
            for visit, angle, real in zip(range(first.start, first.stop), angles, valid, strict=True):
                self._single[name].add(visit, rows, angle, real)

    def compute(self) -> Result:
        """Both conventions: a matrix over (l, n), and the series at n = 1."""
        result = Result()
        for name, words in CONVENTIONS.items():
            full = f"angular_distance.{name}"
            definition = f"angle between the states before visit l and before visit l + n over pi, {words}"
            sample = self._single[name].sample
            result.per_visit[full] = series(sample, self.context.seed, "angle / pi", definition + ", n = 1")
            with np.errstate(invalid="ignore"):
                values = self._sums[name].values / self._counts[name].values
            result.matrices[full] = Matrix(values, "visit l", "n - 1", "angle / pi", definition)
        return result


def angle_over_pi(u: Tensor, v: Tensor) -> Tensor:
    """Angle between unit vectors [.., D] over pi: 0 equal, 1 opposite."""
    return 2 * torch.atan2((u - v).norm(dim=-1), (u + v).norm(dim=-1)) / torch.pi
