"""What text or task a run trains on, and how it is cut into windows."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from depthkit.config import Component
from depthkit.data.registries import CORPORA, TOKENIZERS
from depthkit.registry import Spec

TEXT = {"tokenizer": "bytes", "sequence_length": 256}
"""What is taken where neither the user nor the corpus says anything."""


class DataConfig(Spec):
    """Corpus, tokenizer and windows."""

    corpus: Annotated[Any, Component(CORPORA, default="kjv")] = Field("kjv", validate_default=True)
    """Where the text comes from, or the task."""
    tokenizer: Annotated[Any, Component(TOKENIZERS, default="bytes")] = Field(None, validate_default=True)
    """How text becomes ids. Null takes `bytes`, or what a task needs."""
    sequence_length: int = Field(None, ge=1, validate_default=True)
    """Tokens per window that the model reads. Null takes 256, or what a task needs."""
    document_mask: bool = False
    """Whether batches carry document numbers, so that attention stays inside a document."""
    num_workers: int = Field(0, ge=0)
    """Processes that prepare training batches; 0 means the training process itself. Batches stay the same."""
    cache: str | None = None
    """Folder for tokenised text and trained tokenizers; null means `$XDG_CACHE_HOME/depthkit`."""

    @field_validator("tokenizer", "sequence_length", mode="before")
    @classmethod
    def _fill_in(cls, value: Any, info: ValidationInfo) -> Any:
        return {**TEXT, **_needs(info)}[str(info.field_name)] if value is None else value

    @field_validator("tokenizer", "sequence_length")
    @classmethod
    def _suits_the_corpus(cls, value: Any, info: ValidationInfo) -> Any:
        needed = _needs(info).get(str(info.field_name), value)
        if value != needed:
            raise ValueError(f"corpus {info.data['corpus'].kind} needs {_shown(needed)}; leave it out")
        return value


def _needs(info: ValidationInfo) -> dict[str, Any]:
    corpus: Any = info.data.get("corpus")  # missing when it was refused itself
    needs = corpus.needs() if hasattr(corpus, "needs") else {}
    return {name: value for name, value in needs.items() if value is not None}


def _shown(value: Any) -> Any:
    return value.model_dump() if isinstance(value, Spec) else value
