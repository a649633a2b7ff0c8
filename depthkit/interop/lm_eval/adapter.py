"""What both adapters share: which id opens a text is said, not left to a tokenizer's habits."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from depthkit.utilization.edits import Edit
from depthkit.utilization.subject import Subject


class Adapter(TemplateLM):
    """A model as lm-eval asks it.

    Attributes:
        subject: the model as probes see it.
        bos: the id put in front of every text; None for none.
        prefix: the id that stands for the text before a text that is asked without any; None for none.
        words: how reports call the adapter.
    """

    words: ClassVar[str]
    subject: Subject
    bos: int | None
    prefix: int | None

    @abstractmethod
    def plain(self, text: str) -> list[int]:
        """The ids of a text alone."""

    @abstractmethod
    def edited(self, edit: Edit) -> AbstractContextManager[None]:
        """Inside, the model answers with an edit."""

    @property
    def prefix_token_id(self) -> int:
        """`prefix`.

        Raises:
            ValueError: there is none.
        """
        if self.prefix is None:
            raise ValueError("asks for a text without a context, and this tokenizer has no mark to open it")
        return self.prefix

    def tok_encode(
        self,
        string: str,
        add_special_tokens: bool | None = None,
        left_truncate_len: int | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """Ids of a text, opened by bos unless `add_special_tokens` is False or the text opens with it."""
        ids = self.plain(string)
        if self.bos is not None and add_special_tokens is not False and ids[:1] != [self.bos]:
            ids = [self.bos, *ids]
        return ids[-left_truncate_len:] if left_truncate_len else ids

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """Log probability of whole texts, in windows of the model's context; every token counts once."""
        pieces: list[Any] = []
        owners: list[int] = []
        for place, request in enumerate(requests):
            windows = get_rolling_token_windows(
                self.tok_encode(request.args[0], add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            found = [(None, *make_disjoint_window(window)) for window in windows]
            pieces += found
            owners += [place] * len(found)
        totals = [0.0] * len(requests)
        for place, (value, _) in zip(owners, self._loglikelihood_tokens(pieces), strict=True):
            totals[place] += value
        return totals

    @property
    @abstractmethod
    def max_length(self) -> int:
        """Tokens that the model reads at once."""

    def describe(self) -> dict[str, Any]:
        """For the report."""
        marks = {"bos": self.bos, "prefix": self.prefix}
        return {"adapter": self.words, **marks, "max_length": self.max_length}
