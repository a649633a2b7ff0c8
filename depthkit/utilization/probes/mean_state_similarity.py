"""How alike the mean states of two visits are: the layer similarity of arXiv:2603.15389.

Shapes: L visits, D width.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from depthkit.utilization.accumulators import Totals
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Trace
from depthkit.utilization.result import Matrix, Result, Series
from depthkit.utilization.statistics import numbers

NAME = "mean_state_similarity"


@PROBES.register("mean_state_similarity")
class MeanStateSimilarity(Probe):
    """Cosine between the mean states, over all tokens, after two visits.

    One vector a visit, so a few features with a large mean decide it; `cka` compares whole states.
    """

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._sums = Totals()

    def see(self, trace: Trace) -> None:
        """Add the states of one micro-batch."""
        for visit, state in enumerate(trace.after):
            self._sums.add(visit, state[trace.batch.mask].double().sum(0).cpu())

    def compute(self) -> Result:
        """The matrix, and each visit against the one before."""
        sums = np.stack([self._sums.values[visit].numpy() for visit in range(self.depth)])
        sizes = np.linalg.norm(sums, axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            found = sums @ sums.T / np.outer(sizes, sizes)
        words = "cosine of the mean states, over all tokens, after two visits"
        previous = [np.nan, *np.diagonal(found, 1)]
        return Result(
            per_visit={
                f"{NAME}_previous.all_tokens": Series(
                    numbers(previous), "cosine", f"{words}, this one and the one before"
                )
            },
            matrices={f"{NAME}.all_tokens": Matrix(found, "visit", "visit", "cosine", words)},
        )
