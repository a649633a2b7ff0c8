"""Conversations of several turns."""

from __future__ import annotations

from typing import Any, Literal

from depthkit.data.conversations import messages
from depthkit.data.conversations.corpus import ConversationCorpus, ConversationSettings
from depthkit.data.reading import Row
from depthkit.data.registries import CORPORA


@CORPORA.register("chat")
class Chat(ConversationCorpus):
    """Conversations: records with a list of messages `{role, content}`. Responses alone are scored."""

    class Config(ConversationSettings):
        """Which records, and which responses count."""

        messages_field: str = "messages"
        """Field of the list of messages."""
        train_on: Literal["all", "last"] = "all"
        """Which responses are scored: all of a conversation, or the last."""

    def __init__(self, config: Config):
        super().__init__(config)
        self.last_only = config.train_on == "last"

    def messages(self, row: Row) -> list[Any]:
        """See `ConversationCorpus`."""
        return messages.field(row, self._config.messages_field, "messages_field")
