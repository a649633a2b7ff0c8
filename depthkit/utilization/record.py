"""Record the intact forward of one micro-batch: what every visit reads and gives.

Shapes: B sequences, T positions, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from depthkit.model import Transformer
from depthkit.utilization.capture import capturing
from depthkit.utilization.path import Aux, Path, RecordedPath
from depthkit.utilization.planned import PlannedPath
from depthkit.utilization.sequences import Sequences
from depthkit.utilization.subject import Subject


@dataclass
class Recording:
    """What was seen; see `Trace`."""

    path: Path
    entered: list[Any] = field(default_factory=list)
    before: list[Tensor] = field(default_factory=list)
    after: list[Tensor] = field(default_factory=list)
    aux: list[Aux] = field(default_factory=list)
    final: Tensor = field(default_factory=lambda: torch.empty(0))

    def finish(self, final: Tensor) -> Recording:
        """Set the last stream and refuse what is not finite.

        Raises:
            ValueError: a state is not finite.
        """
        self.final = final
        for visit, state in enumerate(self.after):
            if not bool(torch.isfinite(state).all()):
                raise ValueError(
                    f"the residual state after visit {visit} is not finite: nothing can be measured"
                )
        return self


def record(subject: Subject, batch: Sequences) -> Recording:
    """depthkit's own models are walked along their plan, any other model is run once with hooks.

    Raises:
        ValueError: no layer ran, a state is not finite, or (other models) something changes the stream
            between two visits, so that visits alone cannot be replayed.
    """
    own = isinstance(subject.model, Transformer)
    return _walked(subject, batch) if own else _hooked(subject, batch)


def _walked(subject: Subject, batch: Sequences) -> Recording:
    model = subject.model
    assert isinstance(model, Transformer)
    path = PlannedPath(model, batch.ids, batch.documents, batch.scored)
    seen, carried = Recording(path), path.open()
    if not bool(torch.isfinite(path.stream(carried)).all()):
        raise ValueError("visit 0 reads a residual state that is not finite: nothing can be measured")
    for visit in range(path.depth):
        entered = path.enter(visit, carried)
        seen.entered.append(entered)
        # Where nothing happens between visits, what one reads is the tensor the last one gave.
        same = seen.after and entered is carried
        seen.before.append(seen.after[-1] if same else path.stream(entered))
        carried, aux = path.run(visit, entered)
        seen.after.append(path.stream(carried))
        seen.aux.append(aux)
        carried = path.leave(visit, carried)
    return seen.finish(path.stream(carried))


def _hooked(subject: Subject, batch: Sequences) -> Recording:
    with capturing(subject.layers) as seen:
        subject.run(batch.ids, batch.documents)
    if not seen.calls:
        raise ValueError("no layer was called in a forward of the model: are these its layers?")
    for visit, after in enumerate(seen.after[:-1]):
        finite = bool(torch.isfinite(after).all())
        if finite and not torch.equal(after, seen.before[visit + 1]):
            raise ValueError(_broken(visit))
    before = [seen.before[0], *seen.after[:-1]]
    aux: list[Aux] = [{} for _ in seen.calls]
    known = subject.structure
    inside = dict(zip(known.layers, known.inside, strict=True)) if known else {}
    found = Recording(RecordedPath(seen.calls, inside), list(before), before, seen.after, aux)
    return found.finish(seen.after[-1])


def _broken(visit: int) -> str:
    return (
        f"the state that visit {visit + 1} reads is not the state that visit {visit} returned: something "
        "changes the stream between them (an injection, a norm), and replaying visits alone would be wrong"
    )
