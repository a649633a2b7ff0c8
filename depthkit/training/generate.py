"""`python -m depthkit generate`: what a run's model makes of a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from depthkit.data import open_data
from depthkit.model.generate import Sampling, generate
from depthkit.training import checkpoint, device, saving


def continuation(
    run: Path,
    prompt: str,
    count: int,
    sampling: Sampling,
    prompt_loops: int | None = None,
    loops: int | None = None,
) -> Iterator[str]:
    """Text that a run's latest checkpoint (or one checkpoint) adds to `prompt`, piece by piece.

    A piece is given as soon as it is whole: bytes of one character stay together.

    Raises:
        ValueError: no checkpoint, another tokenizer than it was trained with, an empty prompt that no mark
            for the beginning of a document stands for, or a loop count the model cannot run.
    """
    loaded = checkpoint.load(run)
    tokenizer = open_data(loaded.config.data, loaded.config.seed).tokenizer
    saving.check_tokenizer(loaded.tokenizer, tokenizer.fingerprint, loaded.path)
    start = [] if tokenizer.bos is None else [tokenizer.bos]
    ids = np.concatenate([start, tokenizer.encode(prompt)]).astype(np.int64)
    if not len(ids):
        raise ValueError("prompt: is empty, and this tokenizer has no mark for the beginning of a document")
    model = loaded.model.to(device.choose("auto"))
    window = torch.from_numpy(ids)[None].to(next(model.parameters()).device)
    made: list[int] = []
    shown = ""
    for token in generate(model, window, count, sampling, prompt_loops, loops):
        made.append(int(token))
        text = tokenizer.decode(made)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text.removeprefix(shown)
            shown = text
