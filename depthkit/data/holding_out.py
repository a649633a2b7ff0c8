"""Which documents are held out: chosen by a hash of their text, so a copy never lands on the other side."""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Iterable


def place(text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def threshold(texts: Iterable[str], fraction: float) -> float:
    """The place up to which documents are held out: `fraction` of them, and at least one.

    Raises:
        ValueError: that would leave nothing to train on, as with a single document.
    """
    places = [place(text) for text in texts if text]
    wanted = max(1, math.ceil(fraction * len(places)))
    limit = max(heapq.nsmallest(wanted, places), default=0.0)
    if all(p <= limit for p in places):
        raise ValueError(
            f"data.corpus: {len(places)} distinct documents cannot be split into training and validation; "
            "name validation data, or a separator that cuts the text into documents"
        )
    return limit
