"""A model of ours as a Hugging Face model of a family, and back, held against the original.

Shapes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from depthkit import config as configs
from depthkit.interop import hf
from depthkit.interop.decoder import Decoder, decoder_of
from depthkit.interop.families import FAMILIES
from depthkit.interop.links import to_ours, to_theirs
from depthkit.model import ModelConfig, Transformer
from depthkit.registry import unknown
from depthkit.training import tensors

OWN = "depthkit"
"""What depthkit's own architecture is called."""
TOLERANCE = 1e-3
"""Largest difference of logits, in standard deviations of the original's, that passes as rounding."""
WINDOW = 64
"""Tokens of the comparison."""


def reasons(config: ModelConfig) -> dict[str, str | None]:
    """Family -> why the model would not be exactly one of it, or None."""
    try:
        decoder = decoder_of(config)
    except ValueError as error:
        return dict.fromkeys(FAMILIES.names(), str(error))
    return {name: FAMILIES.get(name)().expresses(decoder) for name in FAMILIES.names()}


def to_hf(
    model: Transformer, family: str, context: int, bos: int | None = None, eos: int | None = None
) -> Any:
    """The model as a `transformers` model of a family that expresses it.

    Args:
        model: without regulators, in evaluation mode.
        family: a name for which `reasons` has None.
        context: longest sequence, for the config.
        bos, eos: ids that open a document and end a text, for the config.

    Raises:
        ValueError: the logits of the result are not those of `model`.
    """
    transformers = hf.import_transformers()
    decoder = decoder_of(model.config)
    settings = FAMILIES.get(family)().settings(decoder) | {
        "max_position_embeddings": context,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": None,
        "dtype": "float32",
    }
    with hf.quiet(transformers):
        config = transformers.AutoConfig.for_model(family, **settings)
        made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    _fill(made, model, family, decoder)
    check_equal(model, made, context)
    return made


def _fill(made: Any, model: Transformer, family: str, decoder: Decoder) -> None:
    links = list(FAMILIES.get(family)().links(decoder))
    zero = {link.theirs for link in links if not link.ours}
    state = to_theirs(links, model.state_dict())
    state |= {name: torch.zeros_like(made.get_parameter(name)) for name in zero}
    report = made.load_state_dict(state, strict=False)
    missing = set(report.missing_keys) - ({"lm_head.weight"} if decoder.tied else set())
    assert not missing, f"{family}: missing {missing}"
    assert not report.unexpected_keys, f"{family}: {report.unexpected_keys}"
    made.tie_weights()


def family_of(config: Any) -> str:
    """The family of a Hugging Face config.

    Raises:
        ValueError: none that depthkit knows, or a feature it cannot express; the message names it.
    """
    name = config.model_type
    if name not in FAMILIES.names():
        raise ValueError(unknown("architecture", name, FAMILIES.names()))
    family = FAMILIES.get(name)()
    refused = list(family.refuses(config))
    if refused:
        raise ValueError(f"{name} with {'; '.join(refused)}: depthkit has no such part")
    for setting in family.dropouts:
        if getattr(config, setting, 0.0):
            warnings.warn(f"{setting} {getattr(config, setting)} is not taken over", stacklevel=3)
    return name


def from_hf(theirs: Any) -> Transformer:
    """A `transformers` model as one of ours, in evaluation mode.

    Raises:
        ValueError: an architecture, a setting or a weight that depthkit cannot express, named; or logits that
            are not the original's.
    """
    if theirs.config.model_type == OWN:
        return theirs.model.eval()
    family = FAMILIES.get(family_of(theirs.config))()
    config = configs.validate(ModelConfig, family.model(theirs.config), theirs.config.model_type)
    decoder = decoder_of(config)
    state = theirs.state_dict()
    if decoder.tied:
        state.pop("lm_head.weight", None)
    found = to_ours(family.links(decoder), state)
    model = Transformer(config).eval()
    tensors.into_module(model, found)
    check_equal(model, theirs, theirs.config.max_position_embeddings)
    return model


@torch.no_grad()
def check_equal(ours: Transformer, theirs: Any, context: int) -> None:
    """Hold the logits of two models against each other on random ids.

    The median over tokens decides, so that a token between two experts does not.

    Raises:
        ValueError: they differ by more than rounding.
    """
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, ours.vocab_size, (2, min(context, WINDOW)), generator=generator)
    wanted, found = theirs(ids).logits.float(), logits(ours, ids)
    gap = ((wanted - found).abs().amax(-1).median() / wanted.std()).item()
    if not gap <= TOLERANCE:
        raise ValueError(
            f"the logits of both models differ by {gap:.2g} standard deviations: the conversion is not exact"
        )


def logits(model: Transformer, ids: Tensor) -> Tensor:
    """Logits `[B, T, V]` of ids `[B, T]`."""
    return model.logits(model(ids).hidden)
