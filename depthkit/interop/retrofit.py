"""`python -m depthkit retrofit`: a pretrained model, its middle dropped and a part of the rest looped.

Source: retrofitted recurrence, arXiv:2511.07384. Early layers are the prelude, late ones the looped core and
the coda; an adapter joins the looped state and the prelude's output; loop counts are sampled and grow over
training.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from depthkit import config as configs
from depthkit.interop import runs
from depthkit.interop.families.base import repeated
from depthkit.interop.layer_choice import Choice, Parts
from depthkit.interop.sources import open_source
from depthkit.model import ModelConfig, Transformer, fold
from depthkit.training import tensors

BACKPROP = 8
"""Loops that are differentiated where more are run, as published."""
CURRICULUM = {"kind": "one_minus_sqrt", "fraction": 0.75}
ADAPTED = {"inject": {"kind": "linear"}, "state_init": {"kind": "normal"}}
NEW = "recurrences."
"""What a looped model has that the pretrained one lacks."""


def retrofit(
    source: str,
    out: Path,
    choice: Choice,
    loops: int = 4,
    adapter: bool = True,
    overrides: Sequence[str] = (),
) -> tuple[Path, str]:
    """Write a looped model made of a pretrained one as a run folder at step 0.

    Args:
        source: a run or checkpoint folder, a Hugging Face folder or name, or `smollm2`.
        out: the folder to write.
        choice: which layers stay, and as what.
        loops: mean loop count; 1 does not loop.
        adapter: join state and input by a learned map at every loop, instead of looping on the output alone.
        overrides: `key=value` settings of the run's config.

    Returns:
        `out`, and a sentence that says which layers became what.

    Raises:
        ValueError: a source that is no plain stack of layers, or a choice it does not allow.
    """
    runs.check_free(out)
    found = open_source(source, out)
    plain = plain_stack(found.model, source)
    parts = choice.parts(plain.plan.depth)
    document = {
        "kind": "run",
        "model": looped(plain.config, parts, loops, adapter),
        "data": found.data,
        "train": runs.train_settings(out, loop_curriculum=CURRICULUM),
    }
    config = runs.validated(document, overrides, f"retrofit {source}")
    model = rebuilt(config.model, plain, parts, config.seed)
    found.copy_tokenizer(out)
    layers = parts._asdict()
    runs.write(out, config, model, found.origin | {"layers": layers})
    return out, "; ".join(f"{name}: layers {_span(listed)}" for name, listed in layers.items() if listed)


def plain_stack(model: Transformer, name: str) -> Transformer:
    """The model with its gains folded, if every layer is visited once and all layers are laid out alike.

    Raises:
        ValueError: it is looped already, gains cannot be folded, or segments have norms of their own.
    """
    config = model.config
    if model.plan.num_layers < model.plan.depth or any(segment.recurs for segment in config.segments):
        raise ValueError(f"{name}: is looped already; a retrofit starts from a plain stack of layers")
    styles = [(config.norm_of(segment), config.placement_of(segment)) for segment in config.segments]
    if any(style != styles[0] for style in styles):
        raise ValueError(f"{name}: its segments differ in norm or placement, which a cut would mix")
    return fold(model) if config.acting_regulators() else model


def looped(config: ModelConfig, parts: Parts, loops: int, adapter: bool) -> dict[str, Any]:
    """The plain mapping under `model:` of the looped model."""
    if loops < 1:
        raise ValueError(f"--loops: {loops} is below 1")
    blocks, first = config.plan().layer_blocks, config.segments[0]
    segments = [
        {"name": name, **repeated([blocks[layer] for layer in layers])}
        for name, layers in parts._asdict().items()
        if layers
    ]
    core = next(segment for segment in segments if segment["name"] == "core")
    core |= {"loops": loop_count(loops, adapter), **(ADAPTED if adapter else {})}
    used = {blocks[layer] for layer in parts.layers}
    model = configs.to_dict(config)
    return model | {
        "blocks": {name: block for name, block in model["blocks"].items() if name in used},
        "norm": configs.to_dict(config.norm_of(first)),
        "placement": config.placement if first.placement is None else first.placement,
        "segments": segments,
    }


def loop_count(loops: int, adapter: bool) -> Any:
    """One loop, or a sampled number; truncated where loops are many and an adapter carries gradients."""
    if loops == 1:
        return 1
    truncated = {"backprop": BACKPROP} if loops > BACKPROP and adapter else {}
    return {"kind": "poisson_lognormal", "mean": loops, **truncated}


def rebuilt(config: ModelConfig, plain: Transformer, parts: Parts, seed: int) -> Transformer:
    """The looped model with the weights of the chosen layers; what is new is initialised from `seed`.

    Raises:
        ValueError: `config` was changed so that the weights do not fit it.
    """
    model = Transformer(config, seed)
    state = chosen_state(tensors.of_module(plain), parts.layers)
    fresh = {name: tensor for name, tensor in tensors.of_module(model).items() if name.startswith(NEW)}
    tensors.into_module(model, state | fresh)
    return model.eval()


def chosen_state(state: dict[str, Tensor], layers: list[int]) -> dict[str, Tensor]:
    """Named tensors of a model that has only some of the layers, in their order."""
    found = {name: tensor for name, tensor in state.items() if not name.startswith("layers.")}
    for new, old in enumerate(layers):
        prefix = f"layers.{old}."
        for name, tensor in state.items():
            if name.startswith(prefix):
                found[f"layers.{new}.{name.removeprefix(prefix)}"] = tensor
    return found


def _span(layers: list[int]) -> str:
    """`4 to 7`, or a list where they do not follow one another."""
    if layers[-1] - layers[0] == len(layers) - 1:
        return str(layers[0]) if len(layers) == 1 else f"{layers[0]} to {layers[-1]}"
    return ", ".join(map(str, layers))
