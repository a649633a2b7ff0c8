"""What a looped model loses without one of its layers at all visits, or without one whole loop."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from depthkit.utilization.deltas import DeltaProbe
from depthkit.utilization.edits import Edit, skip
from depthkit.utilization.probe import Context
from depthkit.utilization.probes import PROBES
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
class LoopAblation(DeltaProbe):
    """Loss of a looped model with several visits skipped together, minus the intact loss.

    Every visit of a looped segment shows the number of its group; visits that are in no loop have none. What
    the model does between loops, such as injecting the input, still happens. One visit alone is `ablation`.
    """

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        looped = {place.segment for place in context.places if place.loop}
        self._looped = [visit for visit, place in enumerate(context.places) if place.segment in looped]
        for name, (key, _) in KINDS.items():
            self.group(name, self._grouped(key))

    def _grouped(self, key: Callable[[Place], Hashable]) -> dict[int, Edit]:
        groups: dict[Hashable, list[int]] = {}
        for visit in self._looped:
            groups.setdefault(key(self.context.places[visit]), []).append(visit)
        return {visit: skip(*group) for group in groups.values() for visit in group}

    def compute(self) -> Result:
        """Two series."""
        words = {kind: f"loss without {said}, minus intact loss" for kind, (_, said) in KINDS.items()}
        result = self.answers("loop_ablation_delta_nats.", words)
        if not self._looped:
            result.skipped["loop_ablation"] = "no layer is visited more than once"
        return result
