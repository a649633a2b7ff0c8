"""Which later visits notice that a visit was skipped.

Sources: the maximum over tokens is arXiv:2505.13898's, the ratio of means arXiv:2603.15389's. They are
different quantities and neither is an estimate of the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Step
from depthkit.utilization.result import Matrix, Result, Series
from depthkit.utilization.statistics import Array, numbers

SMALLEST = 1e-6


@PROBES.register("causal")
class Causal(Probe):
    """Change of a later visit l's write when visit s is skipped at every token, relative to the write.

    `ratio_of_means` divides the mean norm of the change by the mean norm of the write. `max_all_tokens` is
    the largest per-token ratio; it grows with the number of tokens, so it compares only equal samples.
    """

    requires = "skip"

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._change = np.zeros((self.depth, self.depth))
        self._write = np.zeros(self.depth)
        self._kept: tuple[tuple[int, int], tuple[Tensor, Tensor]] | None = None
        self._largest = np.full((self.depth, self.depth), np.nan)

    def update(self, event: Step) -> None:
        """Add one step of one altered stream."""
        if event.visit == event.source:
            return
        intact, size = self._intact_write(event)
        mask = event.trace.batch.mask
        change = (_write(event.before, event.after) - intact).norm(dim=-1).where(mask, 0.0)
        at = (event.source, event.visit)
        self._change[at] += float(change.double().sum())
        self._largest[at] = np.fmax(self._largest[at], float((change / size.clamp(min=SMALLEST)).max()))
        if event.source == 0:
            self._write[event.visit] += float(size.where(mask, 0.0).double().sum())

    def _intact_write(self, event: Step) -> tuple[Tensor, Tensor]:
        """The intact model's write [B, T, D] at this visit and its norm [B, T]; kept for the next source."""
        key = (event.visit, event.trace.rows.start)
        if self._kept is None or self._kept[0] != key:
            write = _write(event.trace.states[event.visit], event.trace.states[event.visit + 1])
            self._kept = key, (write, write.norm(dim=-1))
        return self._kept[1]

    def compute(self) -> Result:
        """Two matrices (skipped s, later l) and their means over later visits."""
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = self._change / self._write[None]
        ratio[~np.isfinite(ratio)] = np.nan
        ratio[np.tril_indices(self.depth)] = np.nan
        result = Result()
        for name, values in {"ratio_of_means": ratio, "max_all_tokens": self._largest}.items():
            self._add(result, name, values)
        return result

    def _add(self, result: Result, name: str, values: Array) -> None:
        words = f"change of visit l's write when visit s is skipped, over the write ({name})"
        result.matrices[f"causal_effect.{name}"] = Matrix(values, "skipped s", "later l", "ratio", words)
        result.per_visit[f"later_effect.{name}"] = Series(
            later_mean(values), "ratio", words + ", mean over the later visits where it is defined"
        )


def _write(before: Tensor, after: Tensor) -> Tensor:
    return after.float() - before.float()


def later_mean(values: Array) -> list[Any]:
    """Mean of each row's defined entries; None for a row without any, such as the last visit's."""
    defined = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return numbers(np.where(defined, values, 0.0).sum(1) / defined.sum(1))
