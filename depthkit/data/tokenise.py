"""From a corpus of text to a token store, once per (corpus, tokenizer)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from depthkit.data import store
from depthkit.data.interfaces import Corpus, Split, Tokenizer

BATCH = 256
"""Documents encoded at once: enough to keep the tokenizer's own threads busy."""


def tokenised(
    corpus: Corpus, tokenizer: Tokenizer, folder: Path, splits: tuple[Split, ...] = store.SPLITS
) -> dict[str, store.TokenStore]:
    """The given splits of a corpus as token stores, written to the cache the first time.

    Processes that ask at the same moment wait for the first one's store.

    Raises:
        ValueError: a split without documents.
        OSError: the cache cannot be written.
    """
    name = store.key(
        format=store.FORMAT, corpus=corpus.fingerprint, tokenizer=tokenizer.fingerprint, splits=splits
    )
    target = folder / "tokens" / name[:32]
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_suffix(".lock")):
        if not target.exists():
            store.write(
                target, {split: encoded(corpus, tokenizer, split) for split in splits}, tokenizer.vocab_size
            )
    return store.read(target)


def encoded(corpus: Corpus, tokenizer: Tokenizer, split: Split) -> Iterator[NDArray[np.int64]]:
    """The documents of a split as ids, each opening with bos."""
    return with_bos(corpus.texts(split), tokenizer)


def with_bos(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[NDArray[np.int64]]:
    """Texts as ids, each opening with bos when the tokenizer has one; empty texts are left out."""
    bos = [] if tokenizer.bos is None else [tokenizer.bos]
    remaining = (text for text in texts if text)
    while chunk := list(itertools.islice(remaining, BATCH)):
        for ids in tokenizer.encode_many(chunk):
            yield np.concatenate([np.asarray(bos, np.int64), ids])
