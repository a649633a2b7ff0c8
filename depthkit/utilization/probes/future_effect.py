"""Which later tokens' writes notice that a visit was skipped at earlier tokens only (arXiv:2505.13898).

Shapes: B sequences, T positions.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field

from depthkit.registry import Spec
from depthkit.utilization.edits import Edit, SkipEarly
from depthkit.utilization.effects import Effects
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Step, Trace
from depthkit.utilization.result import Result
from depthkit.utilization.writes import IntactWrites, irreplaceable, write

NAME = "future_effect"


@PROBES.register("future_effect")
class FutureEffect(Probe):
    """Change of a later visit l's write at positions t and after, when visit s is skipped at 1 .. t - 1 only.

    What reaches later tokens can only pass through mixers, so this is what a visit computes for the future,
    not for the prediction at hand. Position 0 is never touched: without an attention sink, everything
    changes. The cut points t are drawn with the seed; their number multiplies the cost of `ablation`.
    """

    class Config(Spec):
        """Settings of `future_effect`."""

        cuts: int = Field(4, ge=1)
        """Number of cut points t."""

    alike = frozenset({"_reason"})

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._reason: str | None = None
        self._effects = Effects(self.depth, len(context.sequences))
        self._intact = IntactWrites()

    @property
    def cuts(self) -> list[int]:
        """The cut points: each leaves a position to skip and one to read."""
        length = self.context.sequences.ids.shape[1]
        generator = torch.Generator().manual_seed(self.context.seed)
        order = torch.randperm(max(0, length - 2), generator=generator)
        return (order[: self.config.cuts].sort().values + 2).tolist()

    def see(self, trace: Trace) -> None:
        """Ask whether part of a state can be put back."""
        self._reason = irreplaceable(trace) or (None if self.cuts else "needs windows of three tokens")

    def edits(self) -> list[Edit]:
        """Each visit but the last, skipped before each cut point."""
        if self._reason:
            return []
        return [SkipEarly(visit, cut, 1) for visit in range(self.depth - 1) for cut in self.cuts]

    def update(self, step: Step) -> None:
        """Add one step of one altered stream."""
        edit = step.edit
        assert isinstance(edit, SkipEarly)
        if step.visit == edit.first:
            return
        intact, size = self._intact.at(step)
        change = (write(step.before, step.after) - intact).norm(dim=-1)
        late = step.trace.batch.mask.clone()
        late[:, : edit.position] = False
        self._effects.add((edit.first, step.visit), step.trace.rows, change, size, late)

    def compute(self) -> Result:
        """Two matrices and their means over later visits."""
        words = "change of visit l's write at positions t and after when visit s is skipped at 1 .. t - 1"
        result = self._effects.result(NAME, f"{words}, for all cut points t", self.context.seed)
        if self._reason:
            result.skipped[NAME] = self._reason
        return result
