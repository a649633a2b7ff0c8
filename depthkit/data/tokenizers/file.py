"""A tokenizer from a `tokenizer.json`."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from depthkit.data.declared import TEMPLATE_FILE, declared
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
        self._path, self._declared = path, declared(path.with_name("tokenizer_config.json"))
        bos, eos = config.bos or self._declared.bos, self._declared.eos
        super().__init__(read_tokenizer(path, "data.tokenizer.path"), bos, config.vocab_size, eos)

    @cached_property
    def chat_template(self) -> str | None:
        """What `tokenizer_config.json` or `chat_template.jinja` beside it holds."""
        file = self._path.with_name(TEMPLATE_FILE)
        return file.read_text(encoding="utf-8") if file.is_file() else self._declared.chat_template


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
