"""`train.init_from`: another run's weights as the beginning of a new one."""

from __future__ import annotations

import warnings
from pathlib import Path

from depthkit.model import Transformer
from depthkit.training import checkpoint, contents, saving, tensors
from depthkit.training.settings import InitFrom

SHOWN = 3
"""Names in a message."""


def load(model: Transformer, config: InitFrom, tokenizer: str) -> None:
    """Fill `model` with the weights that `config` names.

    Args:
        model: initialised.
        config: where the weights are, and whether all must fit.
        tokenizer: fingerprint of the tokenizer of the new run.

    Raises:
        ValueError: no checkpoint, another tokenizer, a weight of another shape, or, unless `strict` is false,
            weights that only one side has; the message names them.
    """
    try:
        folder = checkpoint.find(Path(config.path))
    except checkpoint.CheckpointError as error:
        raise ValueError(f"train.init_from: {error}") from None
    saving.check_tokenizer(checkpoint.read_state(folder)["tokenizer"], tokenizer, folder)
    found, wanted = contents.load(folder, checkpoint.MODEL), tensors.of_module(model)
    for name in sorted(found.keys() & wanted.keys()):
        if found[name].shape != wanted[name].shape:
            raise ValueError(
                f"train.init_from: {name} is {list(found[name].shape)} in {folder}, and "
                f"{list(wanted[name].shape)} in this model"
            )
    missing, unused = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    gaps = [
        sentence
        for sentence in (_said("lacks", missing), _said("has, beyond this model,", unused))
        if sentence
    ]
    if gaps and config.strict:
        raise ValueError(
            f"train.init_from: {folder} {' and '.join(gaps)}; train.init_from.strict=false starts anyway"
        )
    for sentence in gaps:
        warnings.warn(f"train.init_from: {folder} {sentence}", stacklevel=2)
    model.load_state_dict({name: found[name] for name in found.keys() & wanted.keys()}, strict=False)


def _said(verb: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{verb} {', '.join(names[:SHOWN])}{more}"
