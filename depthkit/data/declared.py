"""What a `tokenizer_config.json` says beyond the tokenizer itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TEMPLATE_FILE = "chat_template.jinja"
"""Where newer repositories keep their template."""


@dataclass(frozen=True)
class Declared:
    """Names of marks, and the template for conversations."""

    bos: str | None = None
    eos: str | None = None
    chat_template: str | None = None


def declared(path: Path) -> Declared:
    """What the file names; nothing where there is no such file.

    Raises:
        ValueError: the file is not JSON.
    """
    if not path.is_file():
        return Declared()
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"data.tokenizer: {path} is not JSON: {error}") from None
    bos, eos = _name(said.get("bos_token")), _name(said.get("eos_token"))
    return Declared(bos, eos, _template(said.get("chat_template")))


def _name(mark: Any) -> str | None:
    return mark["content"] if isinstance(mark, dict) else mark


def _template(said: Any) -> str | None:
    """The template, or of several that are named the one called `default`."""
    if isinstance(said, list):
        return next((one["template"] for one in said if one["name"] == "default"), None)
    return said
