"""One forward through the plan, visit by visit: what every visit gets, and what happens between visits.

Shapes: B batch, T time, D width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from depthkit.model.block import Aux
from depthkit.model.loops.recurrence import Memory, Recurrence
from depthkit.model.loops.states import EVALUATION, Noise
from depthkit.model.plan import Plan, Visit

if TYPE_CHECKING:
    from depthkit.model.cache import Cache
    from depthkit.model.transformer import Transformer

Observe = Callable[[Visit, Tensor, Tensor], None]


class Inputs(NamedTuple):
    """What a forward is given besides its state."""

    ids: Tensor
    """`[B, T]` int64."""
    documents: Tensor | None = None
    """`[B, T]` int64, with a cache `[B, cached + T]`; attention stays within a document."""
    counted: Tensor | None = None
    """`[B, T]` bool: tokens that count for balance and load; None for all."""
    noise: Noise = EVALUATION
    """Where random initial states come from."""
    cache: Cache | None = None
    """Keys and values of earlier positions, by visit."""


class Carried(NamedTuple):
    """What goes from visit to visit: the stream's state and, inside a looped segment, its memory."""

    state: Any
    memory: Memory | None = None


class Walk:
    """The visits of one forward.

    Args:
        model: whose layers are visited.
        plan: in this order, at these loop counts.
        inputs: ids and what goes with them.
        step: the optimiser step, for schedules that change over training.
    """

    def __init__(self, model: Transformer, plan: Plan, inputs: Inputs, step: Tensor | None = None):
        self.model, self.plan, self.inputs = model, plan, inputs
        self.start = 0 if inputs.cache is None else inputs.cache.length
        self.noise = inputs.noise._replace(start=self.start)
        self._grad = False
        self.gains = model.schedules(plan, step, model.training, inputs.ids.device)
        self.readout = model.schedules.readout()
        self._sites = self.gains.per_visit(plan.depth)
        self._recurrences: dict[str, Any] = dict(model.recurrences.items())
        self._banks = model.schedules.banks(plan)
        self._contexts = self._prepare()
        self._first_differentiated = {
            segment.name: plan.loops[segment.name] - segment.backprop
            for segment in model.config.segments
            if segment.backprop is not None
        }

    def _prepare(self) -> dict[str, tuple[Any, Any]]:
        layers = {visit.block: visit.layer for visit in self.plan.visits}
        for layer in self.model.watching:
            self.model.block(layer).look(self.inputs.ids)
        blocks = {kind: self.model.block(layer) for kind, layer in layers.items()}
        return {kind: block.prepare(self.inputs, self.start) for kind, block in blocks.items()}

    def differentiated(self, visit: Visit) -> bool:
        """Whether a visit takes part in the backward pass (truncated loops do not)."""
        return visit.key.loop >= self._first_differentiated.get(visit.key.segment, 0)

    def through(self, carried: Carried, observe: Observe | None = None) -> tuple[Carried, list[Aux]]:
        """All visits in order; `observe(visit, before, after)` sees the residual stream around each."""
        found: list[Aux] = []
        self._grad = torch.is_grad_enabled()
        groups = list(self._groups(alone=observe is not None))
        slab = self.model.checkpointing.slab(len(groups)) if self._grad else None
        for group in groups:
            # Gradient modes are entered here and not in a checkpointed function, which runs twice.
            with contextlib.nullcontext() if self.differentiated(group[0]) else torch.no_grad():
                if len(group) == 1:
                    carried, aux = self._one(group[0], carried, observe)
                    found.append(aux)
                else:
                    carried, several = self.model.checkpointing(self._several, group, carried)
                    found.extend(several)
                if slab is not None:
                    carried = carried._replace(state=slab.keep(carried.state))
        return carried, found

    def _groups(self, alone: bool) -> Iterator[Sequence[Visit]]:
        size = 1 if alone or not torch.is_grad_enabled() else self.model.checkpointing.visits
        visits = self.plan.visits
        start = 0
        while start < len(visits):
            end = start + 1
            while end - start < size and end < len(visits) and self._together(visits[start], visits[end]):
                end += 1
            yield visits[start:end]
            start = end

    def _together(self, first: Visit, other: Visit) -> bool:
        return self.differentiated(first) == self.differentiated(other)

    def _one(self, visit: Visit, carried: Carried, observe: Observe | None) -> tuple[Carried, Aux]:
        carried = self.enter(visit, carried)
        state, aux = self.model.checkpointing(self.visit, visit, carried.state)
        if observe is not None:
            observe(visit, self.close(carried.state), self.close(state))
        return self.leave(visit, carried._replace(state=state)), aux

    def _several(self, visits: Sequence[Visit], carried: Carried) -> tuple[Carried, list[Aux]]:
        found = []
        for visit in visits:
            carried = self.enter(visit, carried)
            state, aux = self.visit(visit, carried.state)
            carried = self.leave(visit, carried._replace(state=state))
            found.append(aux)
        return carried, found

    def visit(self, visit: Visit, state: Any, without: Collection[str] = ()) -> tuple[Any, Aux]:
        """Run the block of one visit, or what is left of it without some branches."""
        block, context = self.model.block(visit.layer), self._contexts[visit.block]
        if self.inputs.cache is not None:
            context = block.with_cache(context, self.inputs.cache, visit.key)
        own = (self._sites[visit.index], context, self._banks[visit.index])
        return block.without(without, state, *own) if without else block(state, *own)

    def enter(self, visit: Visit, carried: Carried) -> Carried:
        """What happens before a visit: where a loop starts, the segment's initial state and injection."""
        recurrence = self._recurrence(visit)
        if recurrence is None or visit.key.slot:
            return carried
        state, memory = carried
        if visit.key.loop == 0:
            # The input is injected into every loop: also where the first ones have no gradient, it has.
            with torch.set_grad_enabled(self._grad or torch.is_grad_enabled()):
                state, memory = recurrence.begin(state, self.readout, self.noise)
        assert memory is not None
        return Carried(recurrence.before(state, memory, visit.key.loop), memory)

    def leave(self, visit: Visit, carried: Carried) -> Carried:
        """What happens after a visit: a loop that ends is remembered, a segment that ends is read out."""
        recurrence = self._recurrence(visit)
        key = visit.key
        if recurrence is None or key.slot + 1 < self.plan.slots[key.segment]:
            return carried
        assert carried.memory is not None
        memory = recurrence.after(carried.state, carried.memory, self.readout)
        if key.loop + 1 < self.plan.loops[key.segment]:
            return Carried(carried.state, memory)
        return Carried(recurrence.end(carried.state, memory))

    def _recurrence(self, visit: Visit) -> Recurrence | None:
        return self._recurrences.get(visit.key.segment)

    def close(self, state: Any) -> Tensor:
        """The residual stream `[B, T, D]` of a state."""
        return self.model.stream.close(state, self.readout)
