"""What the model loses when one visit is skipped."""

from __future__ import annotations

from typing import Any

from depthkit.utilization.edits import Edit, skip
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Step
from depthkit.utilization.result import Result
from depthkit.utilization.statistics import Sample
from depthkit.utilization.table import series


@PROBES.register("ablation")
class Ablation(Probe):
    """Loss of the model with one visit skipped, minus the loss of the intact model.

    Skipped means that the state passes the visit unchanged. Positive: the visit helps.
    """

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._nats, self._correct = self.table(self.depth), self.table(self.depth)

    def edits(self) -> list[Edit]:
        """Each visit skipped in turn."""
        return [skip(visit) for visit in range(self.depth)]

    def update(self, step: Step) -> None:
        """Add the end of one altered stream."""
        if step.scores is None:
            return
        intact, scored = step.trace.scores, step.trace.batch.scored.cpu()
        visit = step.edit.first
        self._nats.add(visit, step.trace.rows, step.scores.nats.double() - intact.nats, scored)
        gained = step.scores.correct.double() - intact.correct.double()
        self._correct.add(visit, step.trace.rows, gained, scored)

    def compute(self) -> Result:
        """Loss and accuracy differences by visit; per-sequence sums are kept."""
        samples: dict[str, Sample] = {
            "ablation_delta_nats.skip": self._nats.sample,
            "ablation_delta_accuracy.skip": self._correct.sample,
        }
        words = {
            "ablation_delta_nats.skip": ("nats / token", "loss with the visit skipped minus intact loss"),
            "ablation_delta_accuracy.skip": (
                "fraction",
                "accuracy with the visit skipped minus intact accuracy",
            ),
        }
        found = {name: series(sample, self.context.seed, *words[name]) for name, sample in samples.items()}
        return Result(per_visit=found, samples=samples)
