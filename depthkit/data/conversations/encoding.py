"""Conversations as token ids, with a mask of what is scored.

Each stretch is tokenised by itself, so no token spans a prompt and a response: the model learns from the
very ids it is given when it answers. The names of marks that the template writes become marks; those that
messages hold stay text.

Shapes: n tokens of a conversation.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from depthkit.data.conversations.messages import Message
from depthkit.data.conversations.rendering import Rendering, Stretch
from depthkit.data.interfaces import Mark, Tokenizer
from depthkit.registry import unknown

BATCH = 256
"""Conversations encoded at once."""
GUARDS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
"""Code points that Unicode promises never to use for characters."""

Piece = str | int
"""Text, or the id of a mark."""


def end_of(tokenizer: Tokenizer, name: str | None) -> int:
    """The id that closes a response: the named mark, else the tokenizer's eos, else its bos.

    Raises:
        ValueError: an unknown mark, or a tokenizer without any.
    """
    name = name or tokenizer.eos
    if name is not None:
        if name not in tokenizer.marks:
            raise ValueError(f"data.corpus.end: {unknown('mark', name, tokenizer.marks)}")
        return tokenizer.marks[name].id
    if tokenizer.bos is None:
        raise ValueError("data.corpus.end: the tokenizer names neither eos nor bos, so name a mark here")
    return tokenizer.bos


class Encoder:
    """Conversations to [2, n]: token ids above 0 or 1, whether each is scored.

    A conversation opens with bos where the tokenizer has one and the template does not write it. A response
    is scored to the last mark that the template puts behind it; where there is none, `end` is added.

    Args:
        tokenizer: turns text into ids.
        template: Jinja.
        end: id that closes a response.
        last_only: score the last response of a conversation alone.
    """

    def __init__(self, tokenizer: Tokenizer, template: str, end: int, last_only: bool):
        self._tokenizer, self._end, self._last_only = tokenizer, end, last_only
        names = {mark.id: name for name, mark in tokenizer.marks.items()}
        wanted = {
            "bos_token": names.get(-1 if tokenizer.bos is None else tokenizer.bos),
            "eos_token": names.get(end),
        }
        self._rendering = Rendering(template, {key: name for key, name in wanted.items() if name})
        self._names = _any_of(re.escape(name) for name in tokenizer.marks)
        self._marks = _any_of(itertools.starmap(_as_written, tokenizer.marks.items()))

    def encode(self, conversations: Iterable[tuple[str, list[Message]]]) -> Iterator[NDArray[np.int64]]:
        """Each conversation, given with where it stands; errors as of `Rendering.stretches`."""
        remaining = iter(conversations)
        while chunk := list(itertools.islice(remaining, BATCH)):
            stretches = [self._stretches(messages, where) for where, messages in chunk]
            texts = [
                piece for one in stretches for _, pieces in one for piece in pieces if isinstance(piece, str)
            ]
            ids = iter(self._tokenizer.encode_many(texts))
            yield from (self._joined(one, ids) for one in stretches)

    def _stretches(self, messages: list[Message], where: str) -> list[tuple[Stretch, list[Piece]]]:
        guard, guarded = self._guarded(messages)
        stretches = self._closed(self._rendering.stretches(guarded, self._last_only, where))
        return [(stretch, self._pieces(stretch.text, guard)) for stretch in stretches]

    def _closed(self, stretches: list[Stretch]) -> Iterator[Stretch]:
        """Responses that end with the last mark in them; what follows it belongs to the next prompt."""
        rest = ""
        for stretch in stretches:
            text = rest + stretch.text
            ends = [mark.end() for mark in self._marks.finditer(text)] if stretch.response else []
            end = ends[-1] if ends else len(text)
            rest = text[end:]
            yield stretch._replace(text=text[:end])
        yield Stretch(rest, False, False)

    def _guarded(self, messages: list[Message]) -> tuple[str, list[Message]]:
        """The messages with the names of marks broken by a character that none of them holds."""
        contents = "".join(message["content"] for message in messages)
        if not self._names.search(contents):
            return "", messages
        guard = next(guard for guard in GUARDS if guard not in contents)
        broken = [self._names.sub(lambda name: guard.join(name.group()), m["content"]) for m in messages]
        turns = zip(messages, broken, strict=True)
        return guard, [Message(role=message["role"], content=content) for message, content in turns]

    def _pieces(self, text: str, guard: str) -> list[Piece]:
        pieces: list[Piece] = []
        for part, mark in _cut(self._marks, text):
            part = part.replace(guard, "") if guard else part
            pieces += [part] if part else []
            pieces += [self._tokenizer.marks[mark].id] if mark else []
        return pieces

    def _joined(
        self, stretches: list[tuple[Stretch, list[Piece]]], texts: Iterator[NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        parts = [self._stretch(stretch, pieces, texts) for stretch, pieces in stretches]
        tokens = np.concatenate(parts, axis=1)
        bos = self._tokenizer.bos
        if bos is not None and tokens[0, 0] != bos:
            tokens = np.concatenate([[[bos], [0]], tokens], axis=1)
        tokens[1, 0] = 0  # nothing comes before the first token to predict it from
        return tokens

    def _stretch(
        self, stretch: Stretch, pieces: list[Piece], texts: Iterator[NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        if stretch.response and not isinstance(pieces[-1], int):
            pieces = [*pieces, self._end]
        ids = [next(texts) if isinstance(piece, str) else np.array([piece]) for piece in pieces]
        joined = np.concatenate([np.empty(0, np.int64), *ids])
        return np.stack([joined, np.full_like(joined, stretch.scored)])


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    """Any of the patterns, the longest first; without any, nothing."""
    return re.compile("|".join(sorted(patterns, key=len, reverse=True)) or "(?!)")


def _as_written(name: str, mark: Mark) -> str:
    return (r"\s*" if mark.takes_left else "") + re.escape(name) + (r"\s*" if mark.takes_right else "")


def _cut(marks: re.Pattern[str], text: str) -> Iterator[tuple[str, str]]:
    """The text before each mark and the mark's name; at the end the rest, and no name."""
    at = 0
    for found in marks.finditer(text):
        yield text[at : found.start()], found.group().strip()
        at = found.end()
    yield text[at:], ""
