"""Several processes, one answer: what their probes have gathered becomes what one process would have.

Whatever a probe changes while it looks is an accumulator, named in its `alike`, or a `Scratch`. A probe that
changes anything else is refused: its numbers would be of some sequences only, and nothing would show it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthkit.registry import Spec
from depthkit.utilization.accumulators import Accumulator, Ranks, Scratch
from depthkit.utilization.edits import Edit
from depthkit.utilization.probe import Context, Probe

APART = (Context, Spec, nn.Module, nn.Parameter, Scratch, Accumulator)
"""What is not looked into: it is the same in all processes, or merged."""


@contextlib.contextmanager
def together(probes: Iterable[Probe], ranks: Ranks | None) -> Iterator[None]:
    """Around what probes take in: afterwards the probes of every process have seen all sequences.

    Raises:
        ValueError: a probe keeps state that cannot be merged; the message names it.
    """
    if ranks is None:
        yield
        return
    before = [_State(probe) for probe in probes]
    yield
    after = [_State(state.probe) for state in before]
    told = ranks.gather([new.told(old) for new, old in zip(after, before, strict=True)])
    for state, each in zip(after, zip(*told, strict=True), strict=True):
        state.merge(each, ranks)


@dataclass(frozen=True)
class _Told:
    """What a process says of a probe: what is wrong, its accumulators, and what it found `alike`."""

    problem: str | None
    forms: list[Any]
    touched: list[bool]
    alike: list[Any]


class _State(pickle.Pickler):
    """Goes through all that a probe holds: finds its accumulators, and takes a digest of the rest."""

    def __init__(self, probe: Probe):
        self.probe = probe
        self._accumulators: dict[int, Accumulator] = {}
        self._holders: list[Any] = []
        self._problem: str | None = None
        written = io.BytesIO()
        super().__init__(written, protocol=5)
        try:
            self.dump(self._rest(probe))
        except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
            self._problem = str(error)
        self._digest = hashlib.sha256(written.getvalue()).digest()

    def _rest(self, holder: Any) -> dict[str, Any]:
        self._holders.append(holder)
        return {name: value for name, value in vars(holder).items() if name not in holder.alike}

    def persistent_id(self, obj: Any) -> Any:
        """How what is not looked into stands in the digest."""
        if isinstance(obj, Accumulator):
            self._accumulators.setdefault(id(obj), obj)
        if isinstance(obj, APART):
            return type(obj).__name__
        if isinstance(obj, Edit):
            return repr(obj)
        if isinstance(obj, Tensor):
            content = obj.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
            return str(obj.dtype), tuple(obj.shape), hashlib.sha256(content.tobytes()).digest()
        return None

    def reducer_override(self, obj: Any) -> Any:
        """Parts of a probe may name attributes in `alike` too."""
        if isinstance(getattr(type(obj), "alike", None), frozenset):
            return dict, (list(self._rest(obj).items()),)
        return NotImplemented

    @property
    def _alike(self) -> list[tuple[Any, str]]:
        return [(holder, name) for holder in self._holders for name in sorted(holder.alike)]

    def told(self, before: _State) -> _Told:
        """What this process says, compared with the state `before` it looked."""
        found = list(self._accumulators.values())
        problem = self._problem
        if problem is None and self._digest != before._digest:
            problem = "what it changes is neither an accumulator nor named in `alike`"
        if problem is None and any(each.touched and each.merged for each in found):
            problem = "it adds to what has been merged"
        alike = [getattr(holder, name) for holder, name in self._alike]
        return _Told(problem, [each.form() for each in found], [each.touched for each in found], alike)

    def merge(self, told: Sequence[_Told], ranks: Ranks) -> None:
        """Put together what all processes have said of this probe.

        Raises:
            ValueError: that is not possible.
        """
        problem = next((each.problem for each in told if each.problem), None)
        if problem is None and any(each.forms != told[0].forms for each in told):
            problem = "it found other things in some processes than in others"
        if problem is None:
            problem = next(filter(None, map(_unlike, zip(*(each.alike for each in told), strict=True))), None)
        if problem is not None:
            kind = self.probe.config.kind
            raise ValueError(
                f"probe {kind}: keeps state that processes cannot merge ({problem}); run it in one process"
            )
        touched = [any(each) for each in zip(*(each.touched for each in told), strict=True)]
        for accumulator, some in zip(self._accumulators.values(), touched, strict=True):
            if some:
                accumulator.merge(ranks)
        found = zip(*(each.alike for each in told), strict=True)
        for (holder, name), values in zip(self._alike, found, strict=True):
            setattr(holder, name, _first(values))


def _unlike(values: Sequence[Any]) -> str | None:
    """What is wrong with what processes found alike: neither a union, nor the same wherever there is one."""
    if isinstance(values[0], (dict, set)):
        return None
    distinct = sorted({repr(value) for value in values if value is not None})
    return f"it found {' and '.join(distinct)}" if len(distinct) > 1 else None


def _first(values: Sequence[Any]) -> Any:
    """What the first process has; of mappings and sets the union, in which the first ones come first."""
    if isinstance(values[0], dict):
        # Later mappings fill in what is missing, after what is there.
        merged = dict(values[0])
        for value in values[1:]:
            merged |= {key: entry for key, entry in value.items() if key not in merged}
        return merged
    if isinstance(values[0], set):
        return set().union(*values)
    return next((value for value in values if value is not None), None)
