"""What a looped model loses without one of its layers at all visits, or without one whole loop."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from depthkit.utilization.deltas import Deltas
from depthkit.utilization.edits import Edit, skip
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Step
from depthkit.utilization.result import Result
from depthkit.utilization.subject import Place

KINDS: dict[str, tuple[Callable[[Place], Hashable], str]] = {
    "all_visits_of_layer": (lambda place: place.layer, "every visit of the layer that this visit runs"),
    "whole_loop": (
        lambda place: (place.segment, place.loop),
        "the whole loop (of its segment) that this visit is in",
    ),
}
"""How visits are grouped, by the last part of the metric's name."""


@PROBES.register("loop_ablation")
class LoopAblation(Probe):
    """Loss of a looped model with several visits skipped together, minus the intact loss.

    Every visit of a looped segment shows the number of its group; visits that are in no loop have none. What
    the model does between loops, such as injecting the input, still happens. One visit alone is `ablation`.
    """

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        looped = {place.segment for place in context.places if place.loop}
        self._looped = [visit for visit, place in enumerate(context.places) if place.segment in looped]
        self._deltas = {name: self._grouped(key) for name, (key, _) in KINDS.items()}

    def _grouped(self, key: Callable[[Place], Hashable]) -> Deltas:
        groups: dict[Hashable, list[int]] = {}
        for visit in self._looped:
            groups.setdefault(key(self.context.places[visit]), []).append(visit)
        edits: dict[int, Edit] = {visit: skip(*group) for group in groups.values() for visit in group}
        return Deltas(edits, self.depth, len(self.context.sequences))

    def edits(self) -> list[Edit]:
        """Each layer's visits, and each loop."""
        return [edit for deltas in self._deltas.values() for edit in deltas.edits]

    def update(self, step: Step) -> None:
        """Add the end of one altered stream."""
        for deltas in self._deltas.values():
            deltas.add(step)

    def compute(self) -> Result:
        """Two series."""
        result = Result()
        for kind, deltas in self._deltas.items():
            name = f"loop_ablation_delta_nats.{kind}"
            definition = f"loss without {KINDS[kind][1]}, minus intact loss"
            result.samples[name] = deltas.sample
            result.per_visit[name] = deltas.series(self.context.seed, definition)
        if not self._looped:
            result.skipped["loop_ablation"] = "no layer is visited more than once"
        return result
