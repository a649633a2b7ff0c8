"""`python -m depthkit moefy`: dense layers turned into experts that start as equal copies.

The weights of a token's experts sum to 1, so that at the start the model computes what it did (sparse
upcycling, arXiv:2212.05055).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from depthkit import config as configs
from depthkit.interop import runs
from depthkit.interop.families.base import repeated
from depthkit.interop.sources import chosen_layers, open_source
from depthkit.model import ModelConfig, Transformer
from depthkit.model.plan import Plan
from depthkit.training import tensors

EXPERTS = ("swiglu", "gelu")
"""Feed-forwards that an expert can be."""


def moefy(
    source: str,
    out: Path,
    num_experts: int = 8,
    top_k: int = 2,
    layers: str | None = None,
    overrides: Sequence[str] = (),
) -> Path:
    """Write a model whose dense feed-forwards became experts as a run folder at step 0.

    Args:
        source: a run or checkpoint folder, a Hugging Face folder or name, or `smollm2`.
        out: the folder to write.
        num_experts: copies E.
        top_k: experts a token goes to.
        layers: stored layers, such as `1,3,8-11`; None is every dense one.
        overrides: `key=value` settings of the run's config.

    Returns:
        `out`.

    Raises:
        ValueError: sizes that cannot be, or a layer whose feed-forward cannot be an expert.
    """
    runs.check_free(out)
    found = open_source(source, out)
    plan = found.model.plan
    wanted = chosen_layers(layers, plan.num_layers) if layers else dense(found.model.config, plan)
    model = with_experts(found.model.config, wanted, num_experts, top_k)
    train = runs.train_settings(out)
    document = {"kind": "run", "model": model, "data": found.data, "train": train}
    config = runs.validated(document, overrides, f"moefy {source}")
    made = rebuilt(config.model, found.model, wanted, config.seed)
    found.copy_tokenizer(out)
    runs.write(out, config, made, found.origin | {"moefied": wanted})
    return out


def dense(config: ModelConfig, plan: Plan) -> list[int]:
    """The stored layers whose feed-forward can be an expert."""
    return [i for i, kind in enumerate(plan.layer_blocks) if config.blocks[kind].ffn.kind in EXPERTS]


def with_experts(config: ModelConfig, layers: list[int], num_experts: int, top_k: int) -> dict[str, Any]:
    """The plain mapping under `model:` with experts in some layers.

    Raises:
        ValueError: a feed-forward that cannot be an expert, or layers of a loop of which only some are named.
    """
    if not 1 <= top_k <= num_experts:
        raise ValueError(f"--top-k: {top_k} must be from 1 to --experts {num_experts}")
    if top_k == 1:
        warnings.warn(
            "--top-k 1: the one weight is always 1, so the router learns from its losses only", stacklevel=2
        )
    if not layers:
        raise ValueError("moefy: the model has no dense layer")
    model, plan = configs.to_dict(config), config.plan()
    for kind in dict.fromkeys(plan.layer_blocks[layer] for layer in layers):
        ffn = config.blocks[kind].ffn
        if ffn.kind not in EXPERTS:
            raise ValueError(
                f"--layers: block {kind!r} has ffn {ffn.kind!r}, and an expert is {' or '.join(EXPERTS)}"
            )
        experts = {"kind": "moe", "num_experts": num_experts, "top_k": top_k, "renormalise": True}
        experts |= {"expert": ffn.kind, "hidden_dim": ffn.hidden(config.dim)}
        model["blocks"][_renamed(kind)] = model["blocks"][kind] | {"ffn": experts}
    for segment in model["segments"]:
        segment |= repeated(_pattern(segment["name"], plan, set(layers)))
    used = {kind for segment in model["segments"] for kind in segment["pattern"]}
    return model | {"blocks": {name: block for name, block in model["blocks"].items() if name in used}}


def _renamed(kind: str) -> str:
    return f"{kind}_moe"


def _pattern(segment: str, plan: Plan, layers: set[int]) -> list[str]:
    """Block kinds of one loop of a segment."""
    kinds: dict[int, str] = {}
    for visit in plan.visits:
        if visit.key.segment == segment:
            kind = _renamed(visit.block) if visit.layer in layers else visit.block
            if kinds.setdefault(visit.key.slot, kind) != kind:
                raise ValueError(
                    f"--layers: slot {visit.key.slot} of segment {segment!r} has a layer for every loop, and "
                    "only some of them are named"
                )
    return list(kinds.values())


def rebuilt(config: ModelConfig, dense_model: Transformer, layers: list[int], seed: int) -> Transformer:
    """The model with experts; routers are initialised from `seed`.

    Raises:
        ValueError: `config` was changed so that the weights do not fit it.
    """
    model = Transformer(config, seed)
    fresh = tensors.of_module(model)
    state = copied(tensors.of_module(dense_model), layers, fresh)
    state |= {
        name: tensor for name, tensor in fresh.items() if name.endswith("ffn.branch.router.weight")
    } | state
    tensors.into_module(model, state)
    return model.eval()


def copied(state: dict[str, Tensor], layers: list[int], like: dict[str, Tensor]) -> dict[str, Tensor]:
    """Named tensors with the feed-forwards of `layers` repeated: `[F, D]` -> `[E, F, D]`."""
    found = dict(state)
    for layer in layers:
        for matrix in ("gate", "up", "down"):
            stacked = f"layers.{layer}.ffn.branch.{matrix}"
            weight = found.pop(f"{stacked}.weight", None)
            if weight is not None:
                experts = like[stacked].shape[0] if stacked in like else 1
                found[stacked] = weight.expand(experts, *weight.shape)
    return found
