"""Prompts and their responses."""

from __future__ import annotations

from typing import Any

from depthkit.data.conversations import messages
from depthkit.data.conversations.corpus import ConversationCorpus, ConversationSettings
from depthkit.data.conversations.messages import Message
from depthkit.data.reading import Row
from depthkit.data.registries import CORPORA


@CORPORA.register("instruct")
class Instruct(ConversationCorpus):
    """Instructions: records with a prompt and its response, which alone is scored."""

    class Config(ConversationSettings):
        """Which records, and what their fields are called."""

        prompt_field: str = "prompt"
        """Field of the prompt."""
        response_field: str = "response"
        """Field of the response."""
        input_field: str | None = None
        """Field of a text that belongs to the prompt and follows it after a blank line; may be empty."""
        system_field: str | None = None
        """Field of a system message; may be empty."""

    def messages(self, row: Row) -> list[Any]:
        """See `ConversationCorpus`."""
        prompt, response = (
            messages.text(row, getattr(self._config, name), name)
            for name in ("prompt_field", "response_field")
        )
        system, extra = self._optional(row, "system_field"), self._optional(row, "input_field")
        asked = f"{prompt}\n\n{extra}" if extra else prompt
        opening = [Message(role="system", content=system)] if system else []
        return [*opening, Message(role="user", content=asked), Message(role="assistant", content=response)]

    def _optional(self, row: Row, setting: str) -> str:
        name = getattr(self._config, setting)
        # The library gives null where a record leaves out what others have.
        if name is None or (name in row.fields and row.fields[name] is None):
            return ""
        return messages.text(row, name, setting)
