"""When a generated text ends, and how its tokens are drawn, as lm-eval's `generation_kwargs` say it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from depthkit.data.interfaces import Tokenizer
from depthkit.model.generate import Sampling

COUNT = 256
"""Tokens where nothing is said, as in lm-eval."""
KNOWN = ("until", "max_gen_toks", "do_sample", "temperature", "top_k")


def sampling_of(settings: dict[str, Any]) -> tuple[Sampling, int]:
    """How tokens are drawn, and how many at most.

    Raises:
        ValueError: it asks to draw in a way that is not known here.
    """
    count = int(settings.get("max_gen_toks", COUNT))
    if not settings.get("do_sample"):
        return Sampling(), count
    if other := sorted(set(settings) - set(KNOWN)):
        raise ValueError(f"generation_kwargs: {', '.join(other)}: only {', '.join(KNOWN)} can be followed")
    return Sampling(float(settings.get("temperature", 1.0)), settings.get("top_k")), count


class Stops:
    """Texts that grow token by token until each holds one of the strings that end it, or an end mark."""

    def __init__(self, tokenizer: Tokenizer, until: str | Sequence[str], count: int):
        self._tokenizer = tokenizer
        self._until = [until] if isinstance(until, str) else [text for text in until if text]
        self._ids: list[list[int]] = [[] for _ in range(count)]
        self._done = [False] * count
        self.texts = [""] * count
        """What was made so far, without what ends it."""

    def add(self, ids: Sequence[int]) -> bool:
        """Add one token to each text that has not ended; True once all have."""
        for row, token in enumerate(ids):
            if not self._done[row]:
                self._grow(row, token)
        return all(self._done)

    def _grow(self, row: int, token: int) -> None:
        if token == self._tokenizer.bos:
            self._done[row] = True
            return
        self._ids[row].append(token)
        text = self._tokenizer.decode(self._ids[row])
        ends = [at for stop in self._until if (at := text.find(stop)) >= 0]
        self._done[row] = bool(ends)
        self.texts[row] = text[: min(ends)] if ends else text
