"""How many answers of a task the model loses when one visit is skipped."""

from __future__ import annotations

import numpy as np

from depthkit.registry import Spec
from depthkit.utilization.edits import skip
from depthkit.utilization.probe import Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Engine
from depthkit.utilization.result import Result, Scalar
from depthkit.utilization.statistics import Array, Sample
from depthkit.utilization.table import series
from depthkit.utilization.tasks.items import Items

NAME = "task_accuracy_drop.skip"


@PROBES.register("task_drop")
class TaskDrop(Probe):
    """Accuracy on a multiple-choice task, minus the accuracy with one visit skipped.

    Items are asked of the intact and of the altered model, and intervals resample items, so differences are
    paired. It costs L(L+1)/2 layer evaluations of all choices of all items, which is why no preset has it.
    """

    class Config(Spec):
        """Settings of `task_drop`."""

        task: str = "agreement"
        """A multiple-choice task of eval.py's `tasks`; `tasks_limit` says how many items."""

    def compute(self) -> Result:
        """A series by visit, the intact accuracy, the accuracy of a guess, and the cost."""
        task: str = self.config.task
        items = self.context.tasks.get(task)
        if items is None:
            return Result(skipped={NAME: f"no items of {task!r}: eval.py has them, in Python give tasks="})
        return self._answer(items, self._correct(items))

    def _correct(self, items: Items) -> Array:
        """[L + 1, N] whether each item is right: with each visit skipped, and of the intact model."""
        engine = Engine(self.context.subject, items.sequences())
        traces, found = engine.record(), np.zeros((self.depth + 1, len(items.rows)))
        for trace in traces:
            found[-1, trace.rows] = -trace.scores.nats.double().sum(1)
        for step in engine.sweep(traces, [skip(visit) for visit in range(self.depth)]):
            if step.scores is not None:
                found[step.edit.first, step.trace.rows] = -step.scores.nats.double().sum(1)
        self._cost = engine.layer_evals
        return items.correct(found)

    def _answer(self, items: Items, correct: Array) -> Result:
        seed, count = self.context.seed, len(items.items)
        about = f"of {items.task} ({count} items)"
        drop = _sample(correct[-1:] - correct[:-1])
        words = f"accuracy {about} minus accuracy with the visit skipped"
        intact = series(_sample(correct[-1:]), seed, "fraction", "")
        ends = [None if bound is None else bound[0] for bound in (intact.low, intact.high)]
        scalars = {
            "task_accuracy": Scalar(intact.values[0], f"accuracy {about} of the intact model", *ends),
            "task_chance": Scalar(items.chance, f"accuracy {about} of a guess"),
            "task_drop_layer_evals": Scalar(self._cost, f"layer evaluations of all choices {about}"),
        }
        return Result(per_visit={NAME: series(drop, seed, "fraction", words)}, scalars=scalars)


def _sample(values: Array) -> Sample:
    return Sample(values, np.ones_like(values))
