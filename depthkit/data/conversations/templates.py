"""How a conversation is written out: a Jinja template of one of three kinds."""

from __future__ import annotations

from pathlib import Path

from depthkit.data.interfaces import Tokenizer
from depthkit.data.registries import TEMPLATES
from depthkit.registry import Spec

PLAIN = """\
{%- for message in messages -%}
{{ message.role | capitalize }}:
{{ message.content }}{{ "" if message.role == "assistant" else "\\n\\n" }}
{%- endfor -%}
{{ "Assistant:\\n" if add_generation_prompt else "" }}
"""


@TEMPLATES.register("plain")
class PlainTemplate:
    """`User:`, a line feed and the text; a blank line after all but responses, which the end mark closes."""

    class Config(Spec):
        """No settings."""

    def __init__(self, config: Config):
        pass

    def jinja(self, tokenizer: Tokenizer) -> str:
        """The template."""
        return PLAIN


@TEMPLATES.register("tokenizer")
class OwnTemplate:
    """The chat template that comes with the tokenizer."""

    class Config(Spec):
        """No settings."""

    def __init__(self, config: Config):
        pass

    def jinja(self, tokenizer: Tokenizer) -> str:
        """The template.

        Raises:
            ValueError: the tokenizer has none.
        """
        if tokenizer.chat_template is None:
            raise ValueError("data.corpus.template: the tokenizer has no chat template; choose another kind")
        return tokenizer.chat_template


@TEMPLATES.register("jinja")
class FileTemplate:
    """A Jinja file that is given what chat templates of Hugging Face tokenizers are given."""

    class Config(Spec):
        """Where the file is."""

        path: str
        """The file. It may use `messages`, `add_generation_prompt`, `bos_token` and `eos_token`."""

    def __init__(self, config: Config):
        self._path = Path(config.path).expanduser()

    def jinja(self, tokenizer: Tokenizer) -> str:
        """The template.

        Raises:
            ValueError: the file cannot be read as text.
        """
        try:
            return self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"data.corpus.template.path: {self._path}: {error}") from None
