"""The settings of papers at their size: counts against what is published, and what a dry run needs."""

import io
import re
import shlex
import socket
from functools import cache
from pathlib import Path

import pytest
import torch
from rich.console import Console

from depthkit import config as c
from depthkit.model import Transformer, account
from depthkit.training.dry_run import dry_run
from depthkit.training.expert_telemetry import ExpertTelemetry
from tests.models import make_ids

FOLDER = Path(__file__).parent.parent / "configs" / "papers"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
RUNS = [name for name in NAMES if name != "depthbench_400m"]


def block(dim, hidden, kv=1.0, matrices=3):
    """Attention with a share `kv` of key/value heads, and a feed-forward."""
    return int(dim * dim * (2 + 2 * kv)) + matrices * dim * hidden


def llama(layers, dim, hidden, vocab, kv=1.0):
    """Untied, with two norms a block and a final one."""
    return layers * (block(dim, hidden, kv) + 2 * dim) + dim + 2 * vocab * dim


HUGINN = 8 * (4 * 5280**2 + 3 * 5280 * 17920) + 65536 * 5280 + 2 * 5280**2 + 33 * 5280 + 16 * 5280
GATES = 15 * 1280**2

PUBLISHED = {
    # name: (count by the published shape, what is missing or more here, what the paper calls it)
    "lns": (llama(24, 2048, 5461, 32000), 0, 1.34e9),
    "mix_ln": (llama(24, 768, 2560, 32000), 0, 247e6),
    "deepnorm": (llama(24, 768, 2560, 32000), 48 * 768 - 768, 247e6),  # shifts of 48 norms, no final norm
    "layer_rope": (llama(24, 2048, 5461, 32000), 2048 + 13 - 49 * 2048, 1.3e9),  # one gain vector, 13 scalars
    "bhyt": (1_235_814_400, 32, 1.24e9),
    "loom": (1_662_301_457 + GATES, -GATES, 1.69e9),
    "huginn": (HUGINN, 0, 3_564_976_800),
    "smelt": (16 * (block(1024, 0, 0.25) + 64 * (3 * 1024 * 304 + 1024) + 2 * 1024) + 1024, 2 * 50304 * 1024, 1e9),
    "deeploop": (124_439_808, None, 124e6),  # GPT-2 small; what differs is counted below
    "sparsity_dense": (llama(16, 2048, 8192, 50304), 0, 1.28e9),
    "sparsity_gqa": (llama(16, 2048, 8192, 50304, 0.25), 0, None),
    "sparsity_moe": (16 * (block(2048, 0) + 64 * (3 * 2048 * 1024 + 2048)) + 33 * 2048 + 2 * 50304 * 2048, 0, 7e9),
    "sparsity_dense_400m": (llama(16, 1536, 2304, 50304), 0, 475e6),
    "sparsity_moe_400m": (
        16 * (block(768, 0) + 33 * 3 * 768 * 1536 + 32 * 768) + 33 * 768 + 2 * 50304 * 768, 0, 2e9
    ),
}  # fmt: skip
"""Counted apart from depthkit's accounting, from shapes in the papers' tables and code."""

DEPTHBENCH = {"L16": 407, "L20": 414, "L24": 405, "L28": 406, "L32": 399, "L42": 404, "L70": 409}
"""Millions, from the table of its configurations."""


@cache
def load(name):
    return c.load(FOLDER / f"{name}.yaml")


@cache
def stored(name):
    run = load(name)
    return account(run.model, run.data.sequence_length).stored


def said(name):
    """The count that the header states."""
    found = re.search(
        r"^# Parameters: ([\d,]+) here; .*published", (FOLDER / f"{name}.yaml").read_text(), re.M
    )
    assert found, name
    return int(found[1].replace(",", ""))


def test_every_file_has_a_published_count_and_names_its_source():
    assert set(PUBLISHED) == set(RUNS)
    assert HUGINN == 3_564_976_800
    for name in NAMES:
        first = (FOLDER / f"{name}.yaml").read_text().splitlines()[0]
        assert re.search(r"arXiv:\d{4}\.\d{5}\b", first) or name == "layer_rope"


@pytest.mark.parametrize("name", RUNS)
def test_the_count_is_the_published_one_or_differs_by_what_is_stated(name):
    shape, difference, called = PUBLISHED[name]
    count = stored(name)
    assert count == said(name)
    if difference is not None:
        assert count == shape + difference
    if called is not None:
        assert shape == pytest.approx(called, rel=0.035)


def test_what_gpt_2_small_has_and_deeploop_does_not():
    positions, padding = 1024 * 768, (50304 - 50257) * 768
    biases = 12 * (3 * 768 + 768 + 3072 + 768)
    norms_there, norms_here = 25 * 2 * 768, 48 * 768
    assert stored("deeploop") == 124_439_808 - positions - biases - norms_there + norms_here + padding


def test_depthbench_has_the_seven_shapes():
    rungs = load("depthbench_400m").rungs()
    counts = {r.place["shape"]: account(r.config.model, 2048).stored for r in rungs}
    assert {shape: round(count / 1e6) for shape, count in counts.items()} == DEPTHBENCH
    assert counts["L24"] == said("depthbench_400m")


def test_experts_are_as_active_as_published():
    for name, dense, called in (
        ("sparsity_moe", "sparsity_dense", 1.28e9),
        ("sparsity_moe_400m", None, 400e6),
    ):
        run = load(name)
        counts = account(run.model, 1024)
        active = counts.active + counts.by_part["embed"] - run.model.dim
        assert active == pytest.approx(called, rel=0.01)
        if dense:
            assert active - stored(dense) == 16 * 64 * 2048  # the routers


def commands(name):
    """Overrides of the commands in a header."""
    text = (FOLDER / f"{name}.yaml").read_text().replace("\\\n#", " ")
    found = re.findall(rf"^#   python train.py configs/papers/{name}.yaml (.*)$", text, re.M)
    return [[word for word in shlex.split(line) if "=" in word] for line in found]


def test_smelt_is_matched_to_its_unlooped_twin():
    (overrides,) = commands("smelt")
    looped, plain = load("smelt").model, c.load(FOLDER / "smelt.yaml", overrides).model
    ours, twin = account(looped, 1024), account(plain, 1024)
    assert ours.stored - ours.by_part["embed"] - ours.by_part["head"] == 999_326_720  # as its header says
    assert twin.stored == pytest.approx(ours.stored, rel=0.015)
    assert twin.flops_per_token == pytest.approx(ours.flops_per_token, rel=0.015)
    assert plain.plan().depth == looped.plan().depth == 24  # visits with a KV cache each


def test_the_toy_loom_routes_every_loop_by_itself():
    (overrides,) = commands("loom")
    run = c.load(FOLDER / "loom.yaml", overrides).with_vocabulary(257)
    assert run.total_steps == 50
    model, ids = Transformer(run.model), make_ids()
    output = model(ids, ids)
    output.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    found = ExpertTelemetry.of(output, torch.ones(ids.shape, dtype=torch.bool))
    assert sorted(key.loop for key in found.load) == sorted(2 * list(range(9)))
    assert len(found.overlap) == 16
    assert set(found.chance.values()) == {2 / 8}


def test_huginn_counts_132_layers_for_its_initialisation():
    model = load("huginn").model
    assert model.plan().depth == 132
    assert model.embedding_std == pytest.approx((2 / (5 * 5280)) ** 0.5, rel=1e-5)


def test_tokens_of_a_run():
    for name, tokens in (
        ("loom", 60e9),
        ("lns", 13.1e9),
        ("huginn", 800e9),
        ("mix_ln", 5.24e9),
        ("bhyt", 2.6e9),
    ):
        run = load(name)
        assert run.total_steps * run.train.tokens_per_step(run.data.sequence_length) == pytest.approx(
            tokens, rel=0.01
        )


@pytest.mark.parametrize("name", ["huginn", "loom", "lns"])
def test_a_dry_run_needs_neither_network_nor_memory(name, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a dry run opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    out = io.StringIO()
    dry_run(load(name), console=Console(width=160, file=out))
    assert f"{stored(name):,}" in out.getvalue()
    assert "not fetched, so how many tokens there are is not known: corpus" in out.getvalue()
