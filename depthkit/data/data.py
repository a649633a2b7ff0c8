"""An opened corpus: training batches without end, each held-out token once, and what is known about both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from depthkit.data import store
from depthkit.data.batch import Batch
from depthkit.data.config import DataConfig
from depthkit.data.interfaces import Loading, Splits, Tokenizer

KEPT_POSITIONS = 16
"""Places in a stream remembered, so that a trainer may fetch some batches ahead of the step it saves."""


def open_data(config: DataConfig, seed: int) -> Data:
    """Read, tokenise (or find in the cache) and split the configured corpus.

    Args:
        config: the corpus, the tokenizer and the windows.
        seed: 0 or more; decides the order of training windows and nothing else.

    Raises:
        ValueError: data that is missing, empty, binary, too short or does not fit the tokenizer.
        OSError: a file or the cache cannot be read or written.
    """
    folder = Path(config.cache).expanduser() if config.cache else store.default_folder()
    corpus = config.corpus.component(config.corpus)
    tokenizer = config.tokenizer.component(config.tokenizer, corpus, folder)
    loading = Loading(
        sequence_length=config.sequence_length,
        document_mask=config.document_mask,
        num_workers=config.num_workers,
        seed=seed,
        byte_lengths=tokenizer.byte_lengths,
    )
    return Data(tokenizer, corpus.open(tokenizer, folder), loading)


class Data:
    """Batches of one corpus; see `open_data`.

    Raises:
        ValueError: fewer training tokens than one window, or fewer than two held-out tokens.
    """

    def __init__(self, tokenizer: Tokenizer, splits: Splits, loading: Loading):
        self.tokenizer = tokenizer
        self._splits = splits
        self._loading = loading
        self._batch_size: int | None = None
        self._recent: dict[int, dict[str, Any]] = {}
        splits.train.check(loading)
        splits.validation.check(loading)

    def train(self, batch_size: int, start: int = 0, state: dict[str, Any] | None = None) -> Iterator[Batch]:
        """Micro-batches number `start`, `start + 1`, ... over as many epochs as are asked for.

        Micro-batch k depends on the data, the seed, the batch size and k alone.

        Args:
            batch_size: sequences per micro-batch.
            start: number of the first micro-batch.
            state: what `state(start)` gave; a streaming corpus can start above 0 only with it.

        Raises:
            ValueError: a size or number out of range, or a state of other data or of another position.
        """
        if batch_size < 1 or start < 0:
            raise ValueError(
                f"batch_size must be at least 1 and start at least 0 (got {batch_size}, {start})"
            )
        train = self._splits.train
        position = train.position_at(start) if state is None else self._checked(state, start, batch_size)
        if position is None:
            raise ValueError(f"a stream can go on at micro-batch {start} only with the state saved there")
        self._batch_size, self._recent = batch_size, {start: position}
        return self._train(train.batches(batch_size, start, position, self._loading), start)

    def _train(self, source: Iterator[tuple[Batch, dict[str, Any]]], start: int) -> Iterator[Batch]:
        for number, (batch, after) in enumerate(source, start + 1):
            self._recent[number] = after
            self._recent.pop(number - KEPT_POSITIONS, None)
            yield batch

    def state(self, number: int) -> dict[str, Any]:
        """What `train` needs to go on with micro-batch `number`, as plain JSON data.

        A streaming corpus knows it for the start of the last `train` and the batches it gave out lately.

        Raises:
            ValueError: a place in a stream that is not known.
        """
        position = self._recent.get(number, self._splits.train.position_at(number))
        if position is None:
            raise ValueError(
                f"state of micro-batch {number}: the stream stands at {max(self._recent, default=0)}"
            )
        return {
            "micro_batch": number,
            "batch_size": self._batch_size,
            "position": position,
            "identity": self._identity(),
        }

    def _identity(self) -> dict[str, str]:
        return {"tokenizer": self.tokenizer.fingerprint, "train": self._splits.train.identity}

    def _checked(self, state: dict[str, Any], start: int, batch_size: int) -> dict[str, Any]:
        for name, value in self._identity().items():
            if state["identity"][name] != value:
                raise ValueError(
                    f"data.{name}: differs from the data of the saved position "
                    f"({state['identity'][name][:8]} then, {value[:8]} now)"
                )
        if state["micro_batch"] != start or state["batch_size"] not in (None, batch_size):
            raise ValueError(
                f"saved position is micro-batch {state['micro_batch']} of {state['batch_size']} sequences, "
                f"not {start} of {batch_size}"
            )
        return state["position"]

    def validation(self, batch_size: int, max_tokens: int | None = None) -> Iterator[Batch]:
        """Held-out windows. Of a text, in its order, with each token but the very first scored exactly once.

        The last window is padded with ids 0 and targets -100, and the last batch may hold fewer windows.
        Of conversations, the responses of each once. Of a task, the same problems for every number of hops.

        Args:
            batch_size: sequences per batch.
            max_tokens: at most this many scored tokens (but at least one window), in windows spread
                evenly over the held-out text or task; None means all of it.

        Raises:
            ValueError: a size below 1.
        """
        if batch_size < 1 or (max_tokens is not None and max_tokens < 1):
            raise ValueError(f"batch_size and max_tokens must be at least 1 (got {batch_size}, {max_tokens})")
        return self._splits.validation.batches(batch_size, max_tokens, self._loading)

    def unigram_entropy(self) -> float:
        """Nats per token of the scored held-out ids under their own distribution.

        No model that ignores context can have a lower held-out loss.
        """
        return self._splits.validation.unigram_entropy(self._loading)

    def summary(self) -> dict[str, Any]:
        """Tokens and documents of each split, sha256 of their ids, tokenizer.

        Of conversations also how many tokens are scored, and how many conversations are cut or left out.
        """
        return {
            "tokenizer": self.tokenizer.fingerprint,
            "vocab_size": self.tokenizer.vocab_size,
            **self._splits.train.summary(self._loading),
            **self._splits.validation.summary(self._loading),
        }
