"""depthkit's own models, replayed through their plan: loops, injections and every stream included.

Shapes: B sequences, T positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import count
from typing import Any

from torch import Tensor, nn

from depthkit.model import Transformer
from depthkit.model.walk import Carried, Inputs, Walk
from depthkit.utilization.nested import mapped
from depthkit.utilization.path import Aux, Path


class PlannedPath(Path):
    """One micro-batch's walk through the model's own plan.

    Args:
        model: in evaluation mode.
        ids: `[B, T]`.
        documents: `[B, T]`, or None.
        counted: `[B, T]`, the tokens that count for expert loads.
    """

    def __init__(self, model: Transformer, ids: Tensor, documents: Tensor | None, counted: Tensor):
        self.model = model
        self.walk = Walk(model, model.plan, Inputs(ids, documents, counted))

    def open(self) -> Carried:
        """What the first visit is given."""
        return self.model.open(self.walk.inputs.ids, self.walk.gains)

    @property
    def depth(self) -> int:
        """Visits of the plan."""
        return self.walk.plan.depth

    def module(self, visit: int) -> nn.Module:
        """The stored layer."""
        return self.model.block(self.walk.plan.visits[visit].layer)

    def run(self, visit: int, carried: Carried, without: Collection[str] = ()) -> tuple[Carried, Aux]:
        """The block of the visit, with the visit's own gains and bank."""
        state, aux = self.walk.visit(self.walk.plan.visits[visit], carried.state, without)
        return carried._replace(state=state), aux

    def enter(self, visit: int, carried: Carried) -> Carried:
        """Initial state, injection, carry and loop embedding, where a loop starts."""
        return self.walk.enter(self.walk.plan.visits[visit], carried)

    def leave(self, visit: int, carried: Carried) -> Carried:
        """Remembering a loop, and the segment's read-out."""
        return self.walk.leave(self.walk.plan.visits[visit], carried)

    def repeats(self, run_twice: Callable[[], Any]) -> None:
        """Nothing: ids, documents and counted tokens are all that goes with the batch."""

    def repeated(self, count: int, rules: None) -> PlannedPath:
        """Another walk."""
        found = self.walk.inputs
        ids, documents, counted = mapped(
            lambda t: t.repeat(count, 1), (found.ids, found.documents, found.counted)
        )
        return PlannedPath(self.model, ids, documents, counted)

    def hooked_skip(self, visit: int, run: Callable[[], Any]) -> Tensor:
        """Logits of the model's own forward."""
        calls = count()

        def hook(module: nn.Module, args: tuple[Any, ...], output: tuple[Any, Aux]) -> tuple[Any, Aux]:
            return (args[0], {}) if next(calls) == visit else output

        handles = [layer.register_forward_hook(hook) for layer in self.model.layers]
        try:
            return self.model.logits(run().hidden)
        finally:
            for handle in handles:
                handle.remove()

    def reached(self, final: Tensor) -> Tensor:
        """Logits of a replay."""
        return self.model.read_out(final)

    def stream(self, carried: Carried) -> Tensor:
        """What the model's stream closes to."""
        return self.walk.close(carried.state)

    def with_stream(self, carried: Carried, stream: Tensor) -> Any:
        """Only where the state is the residual stream itself."""
        if not isinstance(carried.state, Tensor) or carried.state.shape != stream.shape:
            kind = self.model.config.stream.kind
            raise ValueError(f"stream {kind!r} carries more than one residual, so a state cannot be replaced")
        return carried._replace(state=stream)
