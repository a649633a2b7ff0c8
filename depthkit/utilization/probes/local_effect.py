"""Which later visits read a visit's write directly (arXiv:2505.13898)."""

from __future__ import annotations

from typing import Any

from depthkit.utilization.effects import Effects
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Trace
from depthkit.utilization.result import Result
from depthkit.utilization.writes import irreplaceable, write

NAME = "local_effect"


@PROBES.register("local_effect")
class LocalEffect(Probe):
    """Change of a later visit l's write when visit s's write is taken out of the state that l alone reads.

    The stream stays intact otherwise, so nothing passes through the visits between: it is the direct effect,
    where `causal` has the total one. Position 0 is neither changed nor read. It costs L (L - 1) / 2 layer
    evaluations.
    """

    alike = frozenset({"_reason"})

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._reason: str | None = None
        self._effects = Effects(self.depth, len(context.sequences))

    def see(self, trace: Trace) -> None:
        """Run every later visit on its state without every earlier write."""
        self._reason = irreplaceable(trace)
        if self._reason:
            return
        for later in range(1, self.depth):
            intact = write(trace.before[later], trace.after[later])
            size = intact.norm(dim=-1)
            for source in range(later):
                changed = self._without(trace, source, later)
                change = (changed - intact).norm(dim=-1)[:, 1:]
                mask = trace.batch.mask[:, 1:]
                self._effects.add((source, later), trace.rows, change, size[:, 1:], mask)
            self.context.count(len(trace.batch), later)

    def _without(self, trace: Trace, source: int, later: int) -> Any:
        """The write of `later` when it reads its state minus the write of `source`."""
        path, state = trace.path, trace.before[later].clone()
        state[:, 1:] -= (trace.after[source] - trace.before[source])[:, 1:]
        after, _ = path.run(later, path.with_stream(trace.entered[later], state))
        return write(state, path.stream(after))

    def compute(self) -> Result:
        """Two matrices and their means over later visits."""
        words = "change of visit l's write when visit s's write is taken out of the state that l alone reads"
        result = self._effects.result(NAME, words, self.context.seed)
        if self._reason:
            result.skipped[NAME] = self._reason
        return result
