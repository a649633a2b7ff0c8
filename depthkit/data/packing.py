"""Fixed windows over one long row of tokens, with the document of every position known.

Window w reads tokens wT .. wT + T: T inputs and, one to the right, T targets. Neighbours share one token,
the last target of one being the first input of the next, so every token but the first is a target of
exactly one window. A document's opening bos is scored like any other token: predicting it is predicting
that the document before it ends.

Shapes: B windows, T tokens, N tokens in all, M documents.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthkit.data.batch import NOT_SCORED


def num_full_windows(num_tokens: int, sequence_length: int) -> int:
    """Windows without padding; up to T tokens at the end of the text are in none of them."""
    return max(num_tokens - 1, 0) // sequence_length


def num_windows(num_tokens: int, sequence_length: int) -> int:
    """Windows that cover every token, the last one padded if need be."""
    return -(-max(num_tokens - 1, 0) // sequence_length)


def windows_at(
    tokens: NDArray[Any], starts: NDArray[np.int64], numbers: NDArray[np.int64], sequence_length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The windows with the given numbers.

    Args:
        tokens: [N] ids of any integer type.
        starts: [M] position of each document's first token, ascending.
        numbers: [B] window numbers.
        sequence_length: T.

    Returns:
        [B, T + 1] ids, -100 past the end of the text, and the [B, T] document number of each input:
        counted from 0 in each window, -1 past the end.
    """
    positions = numbers[:, None] * sequence_length + np.arange(sequence_length + 1)
    inside = positions < len(tokens)
    windows = np.where(inside, tokens[np.where(inside, positions, 0)].astype(np.int64), NOT_SCORED)
    documents = np.searchsorted(starts, positions[:, :-1], side="right")
    return windows, np.where(inside[:, :-1], documents - documents[:, :1], -1)
