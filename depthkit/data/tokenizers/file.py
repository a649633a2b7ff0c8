"""A tokenizer from a `tokenizer.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from depthkit.data.interfaces import Corpus
from depthkit.data.registries import TOKENIZERS
from depthkit.data.subword import Subword
from depthkit.registry import Spec, nearest

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@TOKENIZERS.register("file")
class FileTokenizer(Subword):
    """A tokenizer of the `tokenizers` library from a JSON file."""

    class Config(Spec):
        """Where the file is."""

        path: str
        """A `tokenizer.json`, or the folder that holds it."""
        bos: str | None = None
        """Mark that opens each document; null means what a `tokenizer_config.json` beside it names."""
        vocab_size: int | None = Field(None, ge=1)
        """Only the first so many ids, where the rest are marks that no text holds; null is all."""

    def __init__(self, config: Config, corpus: Corpus, folder: Path):
        path = Path(config.path).expanduser()
        path = path / "tokenizer.json" if path.is_dir() else path
        bos = config.bos or declared_bos(path.with_name("tokenizer_config.json"))
        super().__init__(read_tokenizer(path, "data.tokenizer.path"), bos, config.vocab_size)


def read_tokenizer(path: Path, key: str) -> Tokenizer:
    """The `tokenizers.Tokenizer` of a file.

    Args:
        path: a `tokenizer.json`.
        key: the setting that named it, for messages.

    Raises:
        ValueError: no such file, or one that is not a tokenizer.
    """
    from tokenizers import Tokenizer

    if not path.is_file():
        near = nearest(path.name, [p.name for p in path.parent.glob("*.json")])
        raise ValueError(f"{key}: no file {path}" + (f"; did you mean {near!r}?" if near else ""))
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"{key}: {path} is not a tokenizer of the tokenizers library: {error}") from None


def declared_bos(path: Path) -> str | None:
    """The bos mark that a `tokenizer_config.json` names; None without the file or the mark.

    Raises:
        ValueError: the file is not JSON.
    """
    if not path.is_file():
        return None
    try:
        mark = json.loads(path.read_text(encoding="utf-8")).get("bos_token")
    except ValueError as error:
        raise ValueError(f"data.tokenizer: {path} is not JSON: {error}") from None
    return mark["content"] if isinstance(mark, dict) else mark
