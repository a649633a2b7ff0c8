"""depthkit's own models, and any other module with its tokenizer, as lm-eval asks them.

Shapes: B texts of a batch, T positions, D width, V vocabulary.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from depthkit.data.interfaces import Tokenizer
from depthkit.interop.lm_eval.adapter import Adapter
from depthkit.interop.lm_eval.until import Stops, sampling_of
from depthkit.model import Transformer
from depthkit.model.generate import Sampling, generate
from depthkit.utilization.altered import final_stream, unscored
from depthkit.utilization.edits import Edit
from depthkit.utilization.sequences import Sequences
from depthkit.utilization.subject import Subject
from depthkit.utilization.tasks.items import padded

Pair = tuple[list[int], list[int]]


class SubjectLM(Adapter):
    """A `Subject` and one of depthkit's tokenizers.

    Texts are sorted by length and run together, right-padded. A model of depthkit generates with its cache;
    any other, and every edited one, by full forwards.

    Args:
        subject: the model.
        tokenizer: text to ids; its bos opens every text, where it has one.
        max_length: tokens read at once; of a longer context the last ones are read, and a warning says so.
        batch_tokens: tokens, padding included, that go through the model at once.
    """

    words = "depthkit"

    def __init__(self, subject: Subject, tokenizer: Tokenizer, max_length: int, batch_tokens: int = 1024):
        super().__init__()
        self.subject, self.bos, self.prefix = subject, tokenizer.bos, tokenizer.bos
        self._tokenizer, self._max_length, self._batch_tokens = tokenizer, max_length, batch_tokens
        self._edit: Edit | None = None
        self._device = subject.device

    @property
    def max_length(self) -> int:
        """Tokens read at once."""
        return self._max_length

    @property
    def eot_token_id(self) -> int:
        """What opens the next text ends this one."""
        return self.prefix_token_id

    def plain(self, text: str) -> list[int]:
        """The tokenizer's ids without bos."""
        return self._tokenizer.encode(text).tolist()

    @contextlib.contextmanager
    def edited(self, edit: Edit) -> Iterator[None]:
        """Every forward inside is edited."""
        self._edit = edit
        try:
            yield
        finally:
            self._edit = None

    def _loglikelihood_tokens(
        self, requests: Sequence[Any], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        pairs = [self._shortened(context, continuation) for _, context, continuation in requests]
        found: list[tuple[float, bool]] = [(0.0, False)] * len(pairs)
        with self.subject.frozen(), tqdm(total=len(pairs), disable=disable_tqdm) as bar:
            for rows in self._batches([len(context) + len(more) for context, more in pairs]):
                answers = self._score(padded([pairs[row] for row in rows]))
                for row, answer in zip(rows, answers, strict=True):
                    found[row] = answer
                bar.update(len(rows))
        return found

    def _shortened(self, context: list[int], continuation: list[int]) -> Pair:
        room = self._max_length + 1 - len(continuation)
        if room < 1:
            raise ValueError(
                f"asks for {len(continuation)} tokens at once, and this model reads {self._max_length}"
            )
        if len(context) > room:
            warnings.warn(f"contexts are cut to the last {self._max_length} tokens", stacklevel=2)
        return context[-room:], continuation

    def _batches(self, lengths: list[int]) -> Iterator[list[int]]:
        """Rows of similar length, the longest first, so that memory runs out at once or never."""
        order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        while order:
            size = max(1, self._batch_tokens // lengths[order[0]])
            yield order[:size]
            order = order[size:]

    def _score(self, batch: Sequences) -> list[tuple[float, bool]]:
        """Log probability of each continuation, and whether it is what the model would say."""
        batch = batch.rows(slice(None), self.subject.device)
        state, scored = final_stream(self.subject, batch, self._edit), batch.scored
        scores = self.subject.score(state[scored][None], batch.targets[scored][None])
        sizes = scored.sum(1).tolist()
        parts = zip(scores.nats[0].double().split(sizes), scores.correct[0].split(sizes), strict=True)
        return [(-float(nats.sum()), bool(correct.all())) for nats, correct in parts]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Continuations; texts of one length and the same settings are made together."""
        groups: dict[tuple[int, str], list[int]] = {}
        cut = self._max_length
        prompts = [self.tok_encode(request.args[0], left_truncate_len=cut) for request in requests]
        for row, request in enumerate(requests):
            groups.setdefault((-len(prompts[row]), str(request.args[1])), []).append(row)
        found = [""] * len(requests)
        with self.subject.frozen(), tqdm(total=len(requests), disable=disable_tqdm) as bar:
            for key in sorted(groups):
                rows, settings = groups[key], requests[groups[key][0]].args[1]
                size = max(1, self._batch_tokens // max(1, -key[0]))
                for start in range(0, len(rows), size):
                    part = rows[start : start + size]
                    texts = self._continued([prompts[row] for row in part], settings)
                    found = [dict(zip(part, texts, strict=True)).get(i, text) for i, text in enumerate(found)]
                    bar.update(len(part))
        return found

    def _continued(self, prompts: list[list[int]], settings: dict[str, Any]) -> list[str]:
        sampling, count = sampling_of(settings)
        stops = Stops(self._tokenizer, settings.get("until", []), len(prompts))
        window = torch.tensor(prompts, device=self.subject.device)
        for ids in self._steps(window, count, sampling):
            if stops.add(ids[:, 0].tolist()):
                break
        return stops.texts

    def _steps(self, prompt: Tensor, count: int, sampling: Sampling) -> Iterator[Tensor]:
        if isinstance(self.subject.model, Transformer) and self._edit is None:
            yield from generate(self.subject.model, prompt, count, sampling)
            return
        generator = torch.Generator().manual_seed(sampling.seed)
        for _ in range(count):
            last = final_stream(self.subject, unscored(prompt), self._edit)[:, -1:]
            ids = sampling.choose(self.subject.read_out(last)[:, -1], generator)
            yield ids
            prompt = torch.cat([prompt, ids], 1)
