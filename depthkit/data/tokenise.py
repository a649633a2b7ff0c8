"""From a corpus of text to a token store, once per (corpus, tokenizer)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from depthkit.data import store
from depthkit.data.interfaces import SPLITS, Corpus, Split, Tokenizer

BATCH = 256
"""Documents encoded at once: enough to keep the tokenizer's own threads busy."""


def tokenised(
    corpus: Corpus, tokenizer: Tokenizer, folder: Path, splits: tuple[Split, ...] = SPLITS
) -> dict[str, store.TokenStore]:
    """The given splits of a corpus as token stores, written to the cache the first time.

    Processes that ask at the same moment wait for the first one's store.

    Raises:
        ValueError: the corpus cannot be read as text, or the store in the cache is damaged.
        OSError: the cache cannot be written; nothing is left half-written.
    """
    entry = store.key(
        format=store.FORMAT, corpus=corpus.fingerprint, tokenizer=tokenizer.fingerprint, splits=splits
    )
    return stored(
        folder,
        entry,
        lambda: {split: with_bos(corpus.texts(split), tokenizer) for split in splits},
        tokenizer.vocab_size,
    )


def stored(
    folder: Path,
    entry: str,
    documents: Callable[[], Mapping[Split, Iterable[NDArray[np.int64]]]],
    vocab_size: int,
) -> dict[str, store.TokenStore]:
    """Token stores of documents as `store.write` takes them, kept in the cache under the key `entry`.

    The documents are asked for only where the cache has none; otherwise as `tokenised`.
    """
    target = folder / "tokens" / entry[:32]
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_suffix(".lock")):
        if not target.exists():
            store.write(target, documents(), vocab_size)
    return store.read(target)


def with_bos(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[NDArray[np.int64]]:
    """Texts as ids, each opening with bos when the tokenizer has one; empty texts are left out."""
    bos = np.asarray([] if tokenizer.bos is None else [tokenizer.bos], np.int64)
    remaining = (text for text in texts if text)
    while chunk := list(itertools.islice(remaining, BATCH)):
        yield from (np.concatenate([bos, ids]) for ids in tokenizer.encode_many(chunk))
