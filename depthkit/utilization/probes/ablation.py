"""What the model loses when one visit is skipped."""

from __future__ import annotations

from typing import Any

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

    requires = "skip"

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._nats, self._correct = self.table(self.depth), self.table(self.depth)

    def update(self, event: Step) -> None:
        """Add the end of one altered stream."""
        if event.scores is None:
            return
        intact, scored = event.trace.scores, event.trace.batch.scored.cpu()
        self._nats.add(event.source, event.trace.rows, event.scores.nats.double() - intact.nats, scored)
        gained = event.scores.correct.double() - intact.correct.double()
        self._correct.add(event.source, event.trace.rows, gained, scored)

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
