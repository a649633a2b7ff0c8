"""lm-eval's configurable task, with a say in what the probability of a choice alone is."""

from __future__ import annotations

from typing import Any

from lm_eval.api.task import ConfigurableTask


class Configured(ConfigurableTask):
    """A multiple-choice task.

    Args:
        config: in lm-eval's terms.
        prior: the text after which `acc_mutual_info` asks a choice's own probability. lm-eval asks it after
            nothing; after the end of the prompt it is the domain's (arXiv:2104.08315).
    """

    def __init__(self, config: dict[str, Any], prior: str = ""):
        self._prior = prior
        super().__init__(config=config)

    def construct_requests(self, doc: dict[str, Any], ctx: Any, **kwargs: Any) -> Any:
        """lm-eval's, with `prior` where it has nothing."""
        requests = super().construct_requests(doc, ctx, **kwargs)
        for request in requests:
            context, continuation = request.arguments
            request.arguments = (context or self._prior, continuation)
        return requests
