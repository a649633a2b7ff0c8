"""What a task of our own is: multiple-choice documents, made here, in the form that lm-eval takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from depthkit.registry import Spec

Document = dict[str, Any]
"""`context`, the text that is given; `choices`, the texts to go on with; `gold`, the right one's place."""


class Task(ABC):
    """A multiple-choice task whose documents are made without a download.

    The first documents are the same however many there are, so that results of one size are a part of those
    of another.
    """

    kind: ClassVar[str]
    version: ClassVar[int] = 1
    """Counts changes that change a score."""
    metric: ClassVar[str] = "acc"
    """lm-eval's metric: `acc`, or `acc_mutual_info`, which takes the choice's own log probability off."""
    prior: ClassVar[str] = ""
    """The text after which that one is asked."""

    class Config(Spec):
        """Size of a task."""

        count: int = 40
        """Documents to ask."""
        seed: int = 0
        """Of every random choice."""

    def __init__(self, config: Any):
        self.config = config

    @abstractmethod
    def documents(self) -> list[Document]:
        """The documents to ask.

        Raises:
            ValueError: they cannot be made; the message says what is missing.
        """

    @abstractmethod
    def examples(self) -> list[Document]:
        """Other documents, to be shown solved before one that is asked."""

    def configuration(self) -> dict[str, Any]:
        """The task in lm-eval's terms; the documents are made at once."""
        splits = {"test": self.documents(), "fewshot": self.examples()}
        return {
            "task": self.kind,
            "custom_dataset": lambda **_: _datasets(splits),
            "test_split": "test",
            "fewshot_split": "fewshot",
            "output_type": "multiple_choice",
            "doc_to_text": "context",
            "doc_to_choice": "choices",
            "doc_to_target": "gold",
            "target_delimiter": "",
            "metric_list": [{"metric": self.metric, "aggregation": "mean", "higher_is_better": True}],
            "metadata": {"version": self.version},
        }


def _datasets(splits: dict[str, list[Document]]) -> dict[str, Any]:
    from datasets import Dataset

    return {name: Dataset.from_list(documents) for name, documents in splits.items()}
