"""What a conversation is, and what one may not look like."""

from __future__ import annotations

from typing import Any, TypedDict

from depthkit.data.reading import Row
from depthkit.registry import nearest, unknown

ROLES = ("system", "user", "assistant", "tool")


class Message(TypedDict):
    """One turn."""

    role: str
    content: str


def field(row: Row, name: str, setting: str) -> Any:
    """What a record holds under `name`.

    Args:
        row: the record.
        name: one of its fields.
        setting: key of the corpus that gave the name, for the message.

    Raises:
        ValueError: no such field, or nothing in it.
    """
    value = row.fields.get(name)
    if value is None:
        # The library fills in null for what a record lacks and another one has.
        there = [key for key, held in row.fields.items() if held is not None]
        close = nearest(name, row.fields.keys() - {name})
        hint = f"; did you mean {close!r}?" if close else "."
        found = ", ".join(sorted(there)) or "nothing"
        raise ValueError(f"{row.where}: no field {name!r} (data.corpus.{setting}){hint} It has: {found}.")
    return value


def text(row: Row, name: str, setting: str) -> str:
    """The text that a record holds under `name`; errors as of `field`, or for anything but text."""
    value = field(row, name, setting)
    if not isinstance(value, str):
        raise ValueError(f"{row.where}: field {name!r} holds {type(value).__name__}, not text")
    return value


def checked(messages: Any, where: str) -> list[Message]:
    """The messages up to the last response.

    Args:
        messages: a list of mappings with `role` and `content`.
        where: opens every message of an error.

    Raises:
        ValueError: not such a list, an unknown role, an empty response, a conversation that the assistant
            opens, or one without a response.
    """
    if not isinstance(messages, list):
        raise ValueError(f"{where}: {type(messages).__name__} is not a list of messages")
    turns = [_message(message, f"{where}, message {number}") for number, message in enumerate(messages)]
    roles = [turn["role"] for turn in turns]
    if "assistant" not in roles:
        raise ValueError(f"{where}: no response: no message has the role assistant")
    if next(role for role in roles if role != "system") == "assistant":
        raise ValueError(f"{where}: the assistant has the first turn; a conversation opens with the user")
    return turns[: len(roles) - roles[::-1].index("assistant")]


def _message(message: Any, where: str) -> Message:
    if not isinstance(message, dict):
        raise ValueError(f"{where}: {type(message).__name__} is not a message {{role, content}}")
    row = Row(where, message)
    role, content = text(row, "role", "messages_field"), text(row, "content", "messages_field")
    if role not in ROLES:
        raise ValueError(f"{where}: {unknown('role', role, ROLES)}")
    if role == "assistant" and not content.strip():
        raise ValueError(f"{where}: the response is empty")
    return Message(role=role, content=content)
