"""What text a run trains on, and how it is cut into windows."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from depthkit.config import Component
from depthkit.data.registries import CORPORA, TOKENIZERS
from depthkit.registry import Spec


class DataConfig(Spec):
    """Corpus, tokenizer and windows."""

    corpus: Annotated[Any, Component(CORPORA, default="kjv")] = Field("kjv", validate_default=True)
    """Where the text comes from."""
    tokenizer: Annotated[Any, Component(TOKENIZERS, default="bytes")] = Field("bytes", validate_default=True)
    """How text becomes ids."""
    sequence_length: int = Field(256, ge=1)
    """Tokens per window that the model reads; each predicts the next."""
    document_mask: bool = False
    """Whether batches carry document numbers, so that attention stays inside a document."""
    num_workers: int = Field(0, ge=0)
    """Processes that prepare training batches; 0 means the training process itself. Batches stay the same."""
    cache: str | None = None
    """Folder for tokenised text and trained tokenizers; null means `$XDG_CACHE_HOME/depthkit`."""
