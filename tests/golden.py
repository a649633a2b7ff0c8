"""Seeded losses of six small architectures, recorded once: what no optimisation may change.

python -m tests.golden        records them anew; only for a change that is meant to change results
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from depthkit.data import Batch
from depthkit.files import write_text
from depthkit.model import ModelConfig, Transformer
from depthkit.training.optim import OPTIMIZERS, parameter_groups
from depthkit.training.step import Stepper

FILE = Path(__file__).with_suffix(".json")
STEPS, VOCAB, SHAPE = 5, 64, (4, 24)
MOE = {"kind": "moe", "num_experts": 4, "top_k": 2, "hidden_dim": 24, "bias_rate": 0.001}
LOOP = {"loops": 3, "inject": "convex", "carry": "mean"}
REGULATED = ["lns", {"kind": "layer_scale", "initial": 0.5}]
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "dense": {},
    "gqa": {"mixer": {"num_kv_heads": 1, "qk_norm": True}},
    "moe": {"ffn": MOE},
    "looped": {"core": LOOP},
    "looped_moe": {"core": LOOP, "ffn": {**MOE, "router": "per_loop"}},
    "regulated": {"regulators": REGULATED, "placement": "sandwich"},
}


def build(name: str) -> Transformer:
    """One of the architectures, from seed 1."""
    options = dict(ARCHITECTURES[name])
    mixer = {"kind": "gqa", "num_heads": 4, **options.pop("mixer", {})}
    block = {"mixer": mixer, "ffn": options.pop("ffn", {"kind": "swiglu", "hidden_dim": 64})}
    core = {"name": "core", "pattern": ["block"], "repeat": 2, **options.pop("core", {})}
    ends = [{"name": end, "pattern": ["block"]} for end in ("prelude", "coda")]
    model = {
        "dim": 32,
        "vocab_size": VOCAB,
        "embedding_std": 0.5,
        "blocks": {"block": block},
        "segments": [ends[0], core, ends[1]],
        **options,
    }
    return Transformer(ModelConfig.model_validate(model), seed=1)


def batches() -> list[Batch]:
    """The same random tokens for every architecture."""
    generator = torch.Generator().manual_seed(0)
    shape = (STEPS, SHAPE[0], SHAPE[1] + 1)
    tokens = torch.randint(0, VOCAB, shape, generator=generator)
    return [Batch(step[:, :-1], step[:, 1:], None, 0) for step in tokens]


def losses(name: str, compiled: bool = False) -> list[float]:
    """What is differentiated in each of five optimiser steps."""
    model = build(name)
    if compiled:
        model.compile_blocks()
    kind: Any = OPTIMIZERS.get("adamw")
    optimizer = kind(kind.Config()).build(parameter_groups(model), 3e-3)
    stepper = Stepper(model, optimizer, clip=1.0, autocast=False)
    return [stepper.take([batch], step).objective for step, batch in enumerate(batches(), 1)]


def capability() -> str:
    """What the CPU's kernels may round by."""
    return torch.backends.cpu.get_cpu_capability()


def record() -> None:
    """Write the file."""
    recorded = {name: losses(name) for name in ARCHITECTURES}
    content = {"capability": capability(), "torch": torch.__version__, "losses": recorded}
    write_text(FILE, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    record()
