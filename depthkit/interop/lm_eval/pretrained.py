"""Hugging Face models: lm-eval's own adapter, with bos said and edits of full forwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from torch import Tensor

from depthkit.interop.lm_eval.adapter import Adapter
from depthkit.utilization.altered import editing
from depthkit.utilization.edits import Edit
from depthkit.utilization.subject import Subject


class PretrainedLM(Adapter, HFLM):
    """`HFLM` of a loaded model and its tokenizer.

    Args:
        subject: the model.
        tokenizer: a `transformers` tokenizer.
        bos: the id that opens every text, or None.
        batch_size: texts that go through the model at once.
    """

    words = "lm_eval.models.huggingface.HFLM"

    def __init__(self, subject: Subject, tokenizer: Any, bos: int | None, batch_size: int):
        self.subject, self.bos, self._full = subject, bos, False
        marks = (bos, tokenizer.bos_token_id, tokenizer.eos_token_id)
        self.prefix = next((mark for mark in marks if mark is not None), None)
        HFLM.__init__(self, pretrained=subject.model, tokenizer=tokenizer, batch_size=batch_size)

    @property
    def max_length(self) -> int:
        """The context that the model's config names."""
        return HFLM.max_length.fget(self)

    def plain(self, text: str) -> list[int]:
        """The tokenizer's ids without marks."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def tok_batch_encode(
        self,
        strings: list[str],
        padding_side: str = "left",
        left_truncate_len: int | None = None,
        truncation: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """`tok_encode` of each text, padded to one length."""
        ids = [torch.tensor(self.tok_encode(text, left_truncate_len=left_truncate_len)) for text in strings]
        ones = [torch.ones_like(row) for row in ids]
        pad = self.tokenizer.pad_token_id
        found = [
            torch.nn.utils.rnn.pad_sequence(rows, True, value, padding_side)
            for rows, value in ((ids, pad), (ones, 0))
        ]
        return found[0], found[1]

    @contextlib.contextmanager
    def edited(self, edit: Edit) -> Iterator[None]:
        """Every forward inside is edited, and generating keeps no cache."""
        with editing(self.subject, edit):
            self._full = True
            try:
                yield
            finally:
                self._full = False

    def _model_generate(self, context: Tensor, max_length: int, stop: list[str], **kwargs: Any) -> Tensor:
        if not self._full:
            return HFLM._model_generate(self, context, max_length, stop, **kwargs)
        if not kwargs.get("do_sample"):
            kwargs = {**kwargs, "do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        return self.model.generate(
            input_ids=context,
            max_length=max_length,
            stop_strings=stop,
            tokenizer=self.tokenizer,
            pad_token_id=self.tokenizer.pad_token_id,
            use_cache=False,
            **kwargs,
        )
