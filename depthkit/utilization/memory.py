"""Smaller micro-batches when memory runs out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")
CPU_REFUSAL = "can't allocate memory"


def within_memory(measure: Callable[[int], T], batch_tokens: int, window: int, alone: bool = True) -> T:
    """`measure(batch_tokens)`, with half the tokens each time it runs out of memory, and a warning.

    Args:
        measure: called with the tokens of a micro-batch.
        batch_tokens: what to try first.
        window: tokens of one window, below which a micro-batch cannot go.
        alone: False where other processes take part, which would go on with what they have begun.

    Raises:
        ValueError: one window at a time is still too much, or this process is not alone.
    """
    while True:
        found = _attempt(measure, batch_tokens)
        if found:
            return found[0]
        # Only here, after the error and all that its frames held on to are gone, is the memory free again.
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if batch_tokens < 2 * window:
            raise ValueError(f"out of memory with one window of {window} tokens: shorten sequence_length")
        if not alone:
            raise ValueError(f"out of memory: several processes need a batch_tokens below {batch_tokens}")
        batch_tokens //= 2
        warnings.warn(f"out of memory: starting again with batch_tokens={batch_tokens}", stacklevel=3)


def _attempt(measure: Callable[[int], T], batch_tokens: int) -> tuple[T] | None:
    try:
        return (measure(batch_tokens),)
    except (torch.OutOfMemoryError, MemoryError):
        return None
    except RuntimeError as error:  # what torch raises on the CPU
        if CPU_REFUSAL not in str(error):
            raise
        return None
