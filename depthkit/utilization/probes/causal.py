"""Which later visits notice that a visit was skipped.

Sources: the maximum over tokens is arXiv:2505.13898's, the ratio of means arXiv:2603.15389's. They are
different quantities and neither is an estimate of the other.
"""

from __future__ import annotations

from typing import Any

from depthkit.utilization.edits import Edit, skip
from depthkit.utilization.effects import Effects
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Step
from depthkit.utilization.result import Result
from depthkit.utilization.writes import IntactWrites, write


@PROBES.register("causal")
class Causal(Probe):
    """Change of a later visit l's write when visit s is skipped at every token, relative to the write.

    `ratio_of_means` divides the mean norm of the change by the mean norm of the write. `max_all_tokens` is
    the largest per-token ratio; it grows with the number of tokens, so it compares only equal samples.
    """

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._effects = Effects(self.depth, len(context.sequences))
        self._intact = IntactWrites()

    def edits(self) -> list[Edit]:
        """Each visit skipped in turn."""
        return [skip(visit) for visit in range(self.depth)]

    def update(self, step: Step) -> None:
        """Add one step of one altered stream."""
        source = step.edit.first
        if step.visit == source:
            return
        intact, size = self._intact.at(step)
        change = (write(step.before, step.after) - intact).norm(dim=-1)
        self._effects.add((source, step.visit), step.trace.rows, change, size, step.trace.batch.mask)

    def compute(self) -> Result:
        """Two matrices (skipped s, later l) and their means over later visits."""
        words = "change of visit l's write when visit s is skipped"
        return self._effects.result("causal_effect", words, self.context.seed, "later_effect")
