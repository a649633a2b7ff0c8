"""Runs on several processes are the run on one: losses, parameters, held-out losses and telemetry."""

import math
from pathlib import Path

import pytest

from depthkit import config as configs
from depthkit.training import checkpoint, metrics
from depthkit.training.run import train
from tests.training.parallel.cases import FOUR, MODELS, QUICK, REST
from tests.training.parallel.processes import spread

CLOSE = 1e-5
NOT_COMPARED = {"tok_s", "memory_mb", "mfu", "device", "threads"}


def train_all(mappings, folder):
    for name, raw in mappings.items():
        train(configs.parse(raw), Path(folder) / name, quiet=True)


@pytest.fixture
def both(mapping, tmp_path):
    """Train every case on several processes, and its model on one."""

    def run(cases, size):
        # An epsilon this large keeps Adam from making differences of rounding in tiny gradients large.
        common = {"steps": 3, "checkpoint_every": 2, "telemetry_every": 2, "eval_every": 2}
        common["optimizer"] = {"kind": "adamw", "eps": 1e-4}
        raws = {
            name: {**mapping(model=MODELS[model], **common, **options), "parallel": way}
            for name, (model, way, options) in cases.items()
        }
        alone = {model: mapping(model=MODELS[model], **common) for model, _, _ in cases.values()}
        train_all(alone, tmp_path)
        spread(train_all, raws, str(tmp_path), folder=tmp_path, size=size)
        return {name: (tmp_path / model, tmp_path / name) for name, (model, _, _) in cases.items()}

    return run


def compare(one, several):
    for event in ("train", "validation", "telemetry", "experts", "end"):
        pairs = zip(
            *(metrics.read(folder / "metrics.jsonl", event) for folder in (one, several)), strict=True
        )
        for first, second in pairs:
            assert first.keys() == second.keys()
            for key in first.keys() - NOT_COMPARED:
                assert distance(first[key], second[key]) < CLOSE, f"{several.name}: {event} {key}"
    weights = [checkpoint.load(folder).model.state_dict() for folder in (one, several)]
    for name, tensor in weights[0].items():
        assert (weights[1][name] - tensor).abs().max() < CLOSE, f"{several.name}: {name}"


def distance(a, b):
    """The largest relative difference (absolute below 1) of anything in two rows."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        return max((distance(a[key], b[key]) for key in a), default=0)
    if isinstance(a, list):
        return max((distance(x, y) for x, y in zip(a, b, strict=True)), default=0)
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) / max(1, abs(a))
    return 0 if a == b else math.inf


def check(pairs):
    for one, several in pairs.values():
        compare(one, several)


def test_two_processes_are_one(both):
    found = both(QUICK, 2)
    check(found)
    losses = {
        name: [row["loss"] for row in metrics.read(one / "metrics.jsonl", "train")]
        for name, (one, _) in found.items()
    }
    assert losses["dense-ddp"] != losses["looped-ddp"]
    assert list((found["dense-fsdp"][1] / "checkpoints" / "step_00000003" / "model").glob("shard-0000[12]-*"))
    assert (found["dense-ddp"][1] / "checkpoints" / "step_00000003" / "model.safetensors").exists()


@pytest.mark.slow
def test_two_processes_are_one_for_every_kind_of_model(both):
    check(both(REST, 2))


@pytest.mark.slow
def test_four_processes_are_one(both):
    check(both(FOUR, 4))
