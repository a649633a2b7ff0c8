"""What a probe is: a question asked of each visit, answered from a shared sweep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from depthkit.registry import Spec
from depthkit.utilization.result import Result
from depthkit.utilization.sequences import Sequences
from depthkit.utilization.subject import Subject
from depthkit.utilization.table import TokenTable


@dataclass(frozen=True)
class Context:
    """What every probe knows from the start."""

    subject: Subject
    sequences: Sequences
    depth: int
    seed: int


class Probe(ABC):
    """A question asked of each visit, answered from a sweep that all probes share.

    `requires` names the sweep: "stream" gives `update` every `Trace` (the intact states of a micro-batch),
    "skip" every `Step` of the single-visit skip sweep.
    """

    requires: ClassVar[Literal["stream", "skip"]]

    class Config(Spec):
        """No settings."""

    def __init__(self, config: Any, context: Context):
        self.config = config
        self.context = context
        self.depth = context.depth

    @abstractmethod
    def update(self, event: Any) -> None:
        """Take in one event of the sweep; keep sums, never token-sized tensors."""

    @abstractmethod
    def compute(self) -> Result:
        """The answer. Undefined numbers are None."""

    def table(self, rows: int) -> TokenTable:
        """An empty table for this evaluation's sequences."""
        return TokenTable(rows, len(self.context.sequences))
