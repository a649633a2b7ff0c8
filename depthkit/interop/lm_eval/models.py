"""The adapter for what eval.py opened: a run of depthkit, or a Hugging Face model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from depthkit.interop import hf, runs
from depthkit.interop.examine import subject_of
from depthkit.interop.hf import Pretrained
from depthkit.training import device, saving
from depthkit.training.checkpoint import Loaded
from depthkit.utilization.options import EvalOptions
from depthkit.utilization.subject import Subject

TEXT_TOKENS = 64
"""Tokens that a text of a task has, about: how many go through a pretrained model at once follows from it."""


def of_run(loaded: Loaded) -> Callable[[EvalOptions], Any]:
    """A run's model with the tokenizer and the window it was trained with.

    Raises (when called):
        ValueError: the tokenizer is another one now.
    """

    def made(options: EvalOptions) -> Any:
        from depthkit.interop.lm_eval.subject_lm import SubjectLM

        tokenizer = runs.tokenizer_of(loaded.config)
        saving.check_tokenizer(loaded.tokenizer, tokenizer.fingerprint, loaded.path)
        subject = Subject(loaded.model.to(device.choose(options.device)), name=loaded.path.parents[1].name)
        return SubjectLM(subject, tokenizer, loaded.config.data.sequence_length, options.batch_tokens)

    return made


def of_pretrained(pretrained: Pretrained) -> Callable[[EvalOptions], Any]:
    """A Hugging Face model with its own tokenizer.

    Raises (when called):
        ValueError: it has none, or its structure is not found.
    """

    def made(options: EvalOptions) -> Any:
        from depthkit.interop.lm_eval.pretrained import PretrainedLM

        tokenizer = _tokenizer(pretrained, options)
        size = max(1, options.batch_tokens // TEXT_TOKENS)
        return PretrainedLM(subject_of(pretrained, options), tokenizer, _bos(tokenizer, options.bos), size)

    return made


def _bos(tokenizer: Any, asked: str | int) -> int | None:
    """`auto` is what the tokenizer itself puts in front of a text, as lm-eval has it."""
    if isinstance(asked, int):
        return asked
    own = tokenizer.bos_token_id
    return own if asked == "auto" and tokenizer.encode("a")[:1] == [own] else None


def _tokenizer(pretrained: Pretrained, options: EvalOptions) -> Any:
    transformers = hf.import_transformers()
    source = pretrained.facts["path"]
    if pretrained.tokenizer is None and not any(Path(source).glob("tokenizer*")):
        raise ValueError(f"{pretrained.name}: has no tokenizer, so it cannot be asked tasks")
    with hf.quiet(transformers):
        try:
            return transformers.AutoTokenizer.from_pretrained(
                source, revision=options.revision, trust_remote_code=options.trust_remote_code
            )
        except (OSError, ValueError, ImportError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ValueError(f"{pretrained.name}: its tokenizer cannot be had: {reason}") from None
