"""A tokenizer from the Hugging Face hub."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from pydantic import Field

from depthkit.data.declared import TEMPLATE_FILE, declared
from depthkit.data.interfaces import Corpus
from depthkit.data.registries import TOKENIZERS
from depthkit.data.subword import Subword
from depthkit.data.tokenizers.file import read_tokenizer
from depthkit.registry import Spec


@TOKENIZERS.register("hub")
class HubTokenizer(Subword):
    """The tokenizer of a Hugging Face model, by name. Needs the network the first time."""

    class Config(Spec):
        """Which tokenizer."""

        name: str
        """Repository name, such as `HuggingFaceTB/SmolLM2-135M`."""
        revision: str | None = None
        """Branch, tag or commit; null means the default branch."""
        bos: str | None = None
        """Mark that opens each document; null means the one that the repository names."""
        vocab_size: int | None = Field(None, ge=1)
        """Only the first so many ids, where the rest are marks that no text holds (t5); null is all."""

        @property
        def remote(self) -> str:
            """What would have to be fetched to open it."""
            return f"tokenizer {self.name}"

    def __init__(self, config: Config, corpus: Corpus, folder: Path):
        path = _download(config, "tokenizer.json")
        self._config, self._declared = config, declared(_download(config, "tokenizer_config.json"))
        bos, eos = config.bos or self._declared.bos, self._declared.eos
        super().__init__(read_tokenizer(path, "data.tokenizer.name"), bos, config.vocab_size, eos)

    @cached_property
    def chat_template(self) -> str | None:
        """What the repository's `tokenizer_config.json` or `chat_template.jinja` holds."""
        if self._declared.chat_template is not None:
            return self._declared.chat_template
        return _download(self._config, TEMPLATE_FILE).read_text(encoding="utf-8")


def _download(config: HubTokenizer.Config, filename: str) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(config.name, filename, revision=config.revision))
    except (OSError, ValueError) as error:  # the library's own errors derive from these
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"data.tokenizer.name: no {filename} of {config.name!r}: {reason}") from None
