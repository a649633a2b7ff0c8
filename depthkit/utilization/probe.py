"""What a probe is: a question asked of each visit, answered from a shared sweep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from depthkit.registry import Spec
from depthkit.utilization.edits import Edit
from depthkit.utilization.replay import Step, Trace
from depthkit.utilization.result import Result
from depthkit.utilization.sequences import Sequences
from depthkit.utilization.subject import Place, Subject
from depthkit.utilization.table import TokenTable
from depthkit.utilization.tasks.items import Items


@dataclass(frozen=True)
class Context:
    """What every probe knows from the start."""

    subject: Subject
    sequences: Sequences
    depth: int
    seed: int
    places: list[Place]
    """Where every visit sits."""
    count: Callable[[int, float], None] = lambda rows, visits: None
    """Called with (sequences, visits) where a probe runs visits by itself, so that the cost is told."""
    tasks: Mapping[str, Items] = field(default_factory=dict)
    """Multiple-choice items by task, for probes that ask a task instead of the windows."""


class Probe(ABC):
    """A question asked of each visit, answered from a sweep that all probes share.

    An evaluation calls `see` with the intact forward of every micro-batch, then `edits` for the altered
    streams the probe wants, `update` with every step of those, then `more` until it wants no more, and
    `compute`. Equal edits that several probes ask for at once are run once.
    """

    class Config(Spec):
        """No settings."""

    alike: ClassVar[frozenset[str]] = frozenset()
    """Attributes that it sets while it looks, and that no sequence changes, such as why a model cannot be
    measured: the same in every process, or mappings and sets of which the union counts. Everything else that
    it changes meanwhile is an accumulator, or several processes cannot share it; see `merging`."""
    reads_aux: ClassVar[bool] = False
    """Whether it reads `step.aux`; what it asks for is then never stacked."""

    def __init__(self, config: Any, context: Context):
        self.config = config
        self.context = context
        self.depth = context.depth

    def see(self, trace: Trace) -> None:  # noqa: B027  a probe need not look
        """Take in the intact forward of one micro-batch; keep sums, never token-sized tensors."""

    def edits(self) -> Iterable[Edit]:
        """The altered streams this probe wants to see."""
        return ()

    def update(self, step: Step) -> None:  # noqa: B027  a probe need not edit
        """Take in one step of one of these; keep sums, never token-sized tensors."""

    def more(self) -> Iterable[Edit]:
        """The altered streams of a further round, once every step of the last was seen; none ends it."""
        return ()

    @abstractmethod
    def compute(self) -> Result:
        """The answer. Undefined numbers are None."""

    def table(self, rows: int) -> TokenTable:
        """An empty table for this evaluation's sequences."""
        return TokenTable(rows, len(self.context.sequences))
