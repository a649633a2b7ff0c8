"""Byte-level BPE trained on the corpus itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import Field

from depthkit.data import store
from depthkit.data.interfaces import Corpus
from depthkit.data.registries import TOKENIZERS
from depthkit.data.subword import Subword
from depthkit.data.tokenizers.file import read_tokenizer
from depthkit.files import write_text
from depthkit.registry import Spec

BOS = "<bos>"


@TOKENIZERS.register("bpe")
class BpeTokenizer(Subword):
    """Byte-level BPE (arXiv 1508.07909, on bytes as in GPT-2) learned from the training split; cached."""

    class Config(Spec):
        """How much to learn, from how much text."""

        vocab_size: int = Field(4096, ge=257)
        """Ids: the 256 bytes, bos, and merges for the rest."""
        train_bytes: int = Field(100_000_000, ge=1)
        """Text to learn from, counted from the start of the training split."""

    def __init__(self, config: Config, corpus: Corpus, folder: Path):
        entry = store.key(kind="bpe", corpus=corpus.fingerprint, **config.model_dump(exclude={"kind"}))
        path = folder / "bpe" / f"{entry[:32]}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():
                _train(_first_bytes(corpus.texts("train"), config.train_bytes), config.vocab_size, path)
        super().__init__(read_tokenizer(path, "data.tokenizer bpe"), BOS)
        if self.vocab_size < config.vocab_size:
            warnings.warn(
                f"data.tokenizer.vocab_size: {config.vocab_size} asked for, but the text has only "
                f"{self.vocab_size} tokens to learn",
                stacklevel=2,
            )


def _train(texts: Iterator[str], vocab_size: int, path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    byte_level: Any = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    write_text(path, tokenizer.to_str())


def _first_bytes(texts: Iterator[str], limit: int) -> Iterator[str]:
    for text in texts:
        yield text
        limit -= len(text.encode())
        if limit <= 0:
            return
