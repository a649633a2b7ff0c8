"""Conversations written out by a Jinja template, with every response known by construction.

The response of a turn is what writing the turn out adds to the prompt before it: what comes before, with
`add_generation_prompt`. That is what a model is asked to go on with when it answers. Nothing is looked for
in the text.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from depthkit.data.conversations.messages import Message


class Stretch(NamedTuple):
    """A piece of a conversation that is tokenised by itself."""

    text: str
    response: bool
    """Whether the model is to write it."""
    scored: bool
    """Whether it is learned from."""


class _Generation(Extension):
    """`{% generation %}`, with which some templates mark responses: what it encloses is written as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The enclosed nodes."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Rendering:
    """Writes conversations out.

    Args:
        template: Jinja, run in a sandbox that can change nothing and reach nothing.
        marks: `bos_token` and `eos_token`, as far as there are such.

    Raises:
        ValueError: it is not Jinja.
    """

    def __init__(self, template: str, marks: dict[str, str]):
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        self._marks = marks
        try:
            self._template = environment.from_string(template)
        except TemplateError as error:
            raise ValueError(f"data.corpus.template: is not Jinja: {error}") from None

    def stretches(self, messages: list[Message], last_only: bool, where: str) -> list[Stretch]:
        """The pieces of a conversation that ends with a response: prompt, response, prompt, ...

        Args:
            messages: see `messages.checked`.
            last_only: score the last response alone.
            where: opens the message of an error.

        Raises:
            ValueError: the template refuses the conversation, or writes a response otherwise than after its
                prompt.
        """
        answers = [turn for turn, message in enumerate(messages) if message["role"] == "assistant"]
        done, found = "", []
        for turn in answers:
            before = self._render(messages[:turn], True, where)
            after = self._render(messages[: turn + 1], False, where)
            found.append(Stretch(_added(before, done, turn, where), False, False))
            scored = not last_only or turn == answers[-1]
            written = _added(after, before, turn, where)
            if not written:
                raise ValueError(f"{where}, message {turn}: data.corpus.template leaves out the response")
            found.append(Stretch(written, True, scored))
            done = after
        return found

    def _render(self, messages: list[Message], prompt: bool, where: str) -> str:
        try:
            return self._template.render(messages=messages, add_generation_prompt=prompt, **self._marks)
        except (TemplateError, TypeError, ValueError) as error:
            raise ValueError(f"{where}: data.corpus.template: {error}") from None


def _added(text: str, beginning: str, turn: int, where: str) -> str:
    if not text.startswith(beginning):
        raise ValueError(
            f"{where}, message {turn}: data.corpus.template does not write it as going on from the prompt "
            f"before it (...{beginning[-20:]!r}), so what the model is to write cannot be told"
        )
    return text[len(beginning) :]


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
