"""A task that needs depth: follow a pointer as many times as the model loops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from depthkit.data import store
from depthkit.data.interfaces import Split, Splits, Tokenizer
from depthkit.data.registries import CORPORA
from depthkit.data.tasks import pointers
from depthkit.data.tasks.supply import HeldOutProblems, ProblemSource
from depthkit.data.tokenizers.ids import IdTokenizer
from depthkit.registry import Spec


def _each_once(hops: list[int]) -> list[int]:
    if len(set(hops)) != len(hops):
        raise ValueError("each number of hops may stand there once")
    return hops


Hops = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1), AfterValidator(_each_once)]


@CORPORA.register("hops")
class HopsTask:
    """Pointer chasing on a random cycle, generated without end: p hops, answered after p loops.

    A sequence tells the N pairs (x, f(x)) of a random cycle f through N places, one token a pair and in
    random order, then asks for every place x, in random order. The target at a query is f applied p times
    to x. All sequences of a micro-batch have the same p, which no token tells: it is the number of loops
    that the model is run with (`Batch.loops`). The vocabulary (N * N + N ids) and the sequence length (2N)
    follow from N. A tenth of all cycles, chosen by hash, is never trained on; held-out loss and accuracy
    are measured on those, on a set that is the same for every seed.
    """

    class Config(Spec):
        """How many places, how many hops."""

        size: int = Field(8, ge=3)
        """Places on the cycle, N; two places have a single cycle, of which none could be held out."""
        train_hops: Hops = [1, 2, 3, 5, 6]
        """Numbers of hops trained on, drawn with equal chance for every micro-batch. N hops lead back."""
        test_hops: Hops = [1, 2, 3, 4, 5, 6]
        """Numbers of hops of the held-out problems."""
        test_problems: int = Field(256, ge=1)
        """Held-out problems, N queries each; every number of hops is asked of the same ones."""

        def needs(self) -> dict[str, Any]:
            """What the rest of `data:` has to be."""
            vocabulary = pointers.vocab_size(self.size)
            return {
                "tokenizer": IdTokenizer.Config.model_validate({"vocab_size": vocabulary}),
                "sequence_length": 2 * self.size,
            }

        def loops(self) -> list[int]:
            """The loop counts that batches ask for."""
            return sorted({*self.train_hops, *self.test_hops})

    def __init__(self, config: Config):
        self._config = config

    @property
    def fingerprint(self) -> str:
        """Sha256 of the settings."""
        return store.key(**self._config.model_dump(), held_out=pointers.HELD_OUT)

    def texts(self, split: Split) -> Iterator[str]:
        """Refused: there is no text.

        Raises:
            ValueError: always.
        """
        raise ValueError("data.corpus hops: holds token ids, so no tokenizer can be trained on its text")

    def open(self, tokenizer: Tokenizer, folder: Path) -> Splits:
        """See `Corpus`; nothing is stored."""
        needed = pointers.vocab_size(self._config.size)
        if tokenizer.vocab_size != needed:
            raise ValueError(f"data.tokenizer: corpus hops needs {needed} ids, not {tokenizer.vocab_size}")
        config = self._config
        return Splits(
            ProblemSource(config.size, config.train_hops),
            HeldOutProblems(config.size, config.test_hops, config.test_problems),
        )
