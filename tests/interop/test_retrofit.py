"""A pretrained model with its middle dropped and a part looped; dense layers as experts."""

import json

import numpy as np
import pytest
import torch

from depthkit.interop import convert, layer_choice
from depthkit.interop.layer_choice import Choice
from depthkit.interop.moefy import moefy
from depthkit.interop.retrofit import retrofit
from depthkit.model import Transformer
from depthkit.training import checkpoint
from tests.interop.helpers import write_run
from tests.models import make_ids
from tests.utilization.families import family

X = make_ids(time=9, vocab=97)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A saved Llama of 6 layers."""
    folder = tmp_path_factory.mktemp("models") / "llama"
    family("llama").save_pretrained(folder)
    return folder


def built(source, out, split="1/2/1", overrides=(), **options):
    choice = Choice(split=split, **{k: options.pop(k) for k in ("by", "report", "layers") if k in options})
    retrofit(str(source), out, choice, overrides=overrides, **options)
    return checkpoint.load(out)


def hidden(model, x=X, **options):
    with torch.no_grad():
        return model(x, **options).hidden


@pytest.mark.parametrize("loops", [1, 4])
def test_one_loop_without_adapter_is_the_cut_model(llama, tmp_path, loops):
    """Layers 0, 3, 4 and 5 of transformers' own model, and of ours bit for bit."""
    found = built(llama, tmp_path / "run", loops=loops, adapter=False)
    original = family("llama")
    whole = convert.from_hf(original)
    original.model.layers = torch.nn.ModuleList(original.model.layers[i] for i in (0, 3, 4, 5))
    original.config.num_hidden_layers = 4
    once = {} if loops == 1 else {"loops": 1}
    with torch.no_grad():
        wanted = original.model(X, use_cache=False).last_hidden_state
    torch.testing.assert_close(hidden(found.model, **once), wanted, rtol=1e-5, atol=1e-5)
    cut = Transformer(
        whole.config.model_copy(
            update={"segments": [whole.config.segments[0].model_copy(update={"repeat": 4})]}
        )
    ).eval()
    state = whole.state_dict()
    for name in cut.state_dict():
        place = name.split(".")
        if place[0] == "layers":
            place[1] = str([0, 3, 4, 5][int(place[1])])
        cut.state_dict()[name].copy_(state[".".join(place)])
    assert torch.equal(hidden(found.model, **once), hidden(cut))


def test_what_a_retrofit_has(llama, tmp_path):
    found = built(llama, tmp_path / "run", split="1/2/2", loops=4)
    prelude, core, coda = found.config.model.segments
    assert [s.name for s in (prelude, core, coda)] == ["prelude", "core", "coda"]
    assert [s.repeat for s in (prelude, core, coda)] == [1, 2, 2]
    assert (core.loops.kind, core.loops.mean, core.loops.backprop) == ("poisson_lognormal", 4, None)
    assert (core.inject.kind, core.state_init.kind) == ("linear", "normal")
    assert found.config.train.loop_curriculum.kind == "one_minus_sqrt"
    assert found.model.plan.depth == 1 + 4 * 2 + 2
    assert json.loads((tmp_path / "run" / "origin.json").read_text())["layers"]["core"] == [2, 3]
    adapter = found.model.recurrences["core"].inject.adapter.weight
    assert adapter.shape == (32, 64)
    assert adapter.std() > 0.01


def test_many_loops_are_truncated_where_the_input_is_injected(llama, tmp_path):
    assert built(llama, tmp_path / "a", loops=12).config.model.segments[1].loops.backprop == 8
    plain = built(llama, tmp_path / "b", loops=12, adapter=False).config.model.segments[1]
    assert (plain.loops.backprop, plain.inject.kind) == (None, "none")


def test_without_prelude_and_coda(llama, tmp_path):
    found = built(llama, tmp_path / "run", split="0/6/0", loops=2)
    assert [s.name for s in found.config.model.segments] == ["core"]


def test_a_run_with_gains_is_folded_first(tmp_path):
    model = write_run(tmp_path / "run", depth=4, regulators=["lns"])
    found = built(tmp_path / "run", tmp_path / "out", split="1/2/1", loops=1, adapter=False)
    assert found.config.model.regulators == []
    assert found.config.data.tokenizer.kind == "bytes"
    x = make_ids(vocab=257)
    torch.testing.assert_close(hidden(found.model, x), hidden(model, x), rtol=1e-5, atol=1e-5)


class FakeReport:
    depth = 6
    metrics = [layer_choice.INFLUENCE]
    arrays = {layer_choice.ANGLE: np.full((6, 6), np.nan)}

    def __init__(self):
        self.arrays[layer_choice.ANGLE][:, 1] = [0.5, 0.4, 0.3, 0.1, 0.2, np.nan]

    def per_visit(self, name):
        return [0.9, 0.1, 0.5, 0.4, 0.2, 0.8]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({}, ([0], [3, 4], [5])),
        ({"by": "block_influence"}, ([0], [2, 3], [5])),
        ({"by": "angular_distance"}, ([0], [1, 2], [5])),
        ({"layers": "1,2-3,5"}, ([1], [2, 3], [5])),
    ],
)
def test_which_layers_are_chosen(monkeypatch, options, parts):
    """Dropped by influence: 1 and 4, the least; by angle: 3 and 4, between which the state turns least."""
    monkeypatch.setattr(layer_choice.Report, "load", lambda path: FakeReport())
    report = "report.json" if "by" in options else None
    assert Choice("1/2/1", report=report, **options).parts(6) == parts


def test_a_real_report_chooses(llama, tmp_path):
    from depthkit.utilization import Sequences, evaluate

    report = evaluate(family("llama"), Sequences.of(X), ["influence", "angular"])
    report.save(tmp_path / "report", html=False, plots=False)
    parts = Choice("1/2/1", by="block_influence", report=tmp_path / "report").parts(6)
    values = report.per_visit(layer_choice.INFLUENCE)
    dropped = set(range(6)) - set(parts.layers)
    assert max(values[layer] for layer in dropped) <= min(values[layer] for layer in parts.layers)
    angles = Choice("1/2/1", by="angular_distance", report=tmp_path / "report").parts(6)
    start = int(np.nanargmin(report.arrays[layer_choice.ANGLE][:5, 1]))
    assert set(range(6)) - set(angles.layers) == {start, start + 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "4/8"}, "'4/8' is not P/C/D"),
        ({"split": "4/8/4"}, "4/8/4; the core needs 1 layer or more, and all at most the model's 6"),
        ({"split": "2/0/2"}, "2/0/2; the core needs 1 layer"),
        ({"by": "angle"}, "unknown rule 'angle'"),
        ({"by": "block_influence"}, "needs --report"),
        ({"layers": "0,1"}, "2 layers, but --split 1/2/1 has 4"),
        ({"layers": "0,x"}, "'x' is not a layer"),
        ({"layers": "3,1,2,4"}, "ascending order"),
        ({"loops": 0}, "--loops: 0 is below 1"),
        ({"overrides": ["model.dim=64"]}, "tensors do not fit the model"),
    ],
)
def test_choices_that_cannot_be(llama, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        built(llama, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_looped_model_is_not_retrofitted(tmp_path):
    write_run(tmp_path / "run", loops=2)
    with pytest.raises(ValueError, match="is looped already"):
        built(tmp_path / "run", tmp_path / "out", split="0/1/1")


@pytest.mark.parametrize(("ffn", "layers"), [("swiglu", None), ("gelu", "1"), ("swiglu", "0,2-3")])
def test_experts_that_are_copies_compute_the_same(tmp_path, ffn, layers):
    mixer = {"kind": "gqa", "num_heads": 2, "num_kv_heads": 1}
    model = write_run(
        tmp_path / "run", depth=4, blocks={"dense": {"mixer": mixer, "ffn": ffn}}, regulators=["lns"]
    )
    moefy(str(tmp_path / "run"), tmp_path / "out", 4, 2, layers)
    found = checkpoint.load(tmp_path / "out")
    x = make_ids(vocab=257)
    torch.testing.assert_close(hidden(found.model, x), hidden(model, x), rtol=1e-5, atol=1e-5)
    kinds = [found.config.model.blocks[kind].ffn.kind for kind in found.model.plan.layer_blocks]
    wanted = range(4) if layers is None else {"1": [1], "0,2-3": [0, 2, 3]}[layers]
    assert [i for i, kind in enumerate(kinds) if kind == "moe"] == list(wanted)
    routers = [p for name, p in found.model.named_parameters() if name.endswith("router.weight")]
    assert all(router.std() > 0.01 for router in routers)


def test_looped_layers_become_experts(tmp_path):
    model = write_run(tmp_path / "run", depth=2, loops=3)
    moefy(str(tmp_path / "run"), tmp_path / "out", 3, 2, "1")
    x = make_ids(vocab=257)
    torch.testing.assert_close(
        hidden(checkpoint.load(tmp_path / "out").model, x), hidden(model, x), rtol=1e-5, atol=1e-5
    )


def test_layers_that_cannot_be_experts(tmp_path):
    write_run(
        tmp_path / "run", segments=[{"name": "core", "pattern": ["dense"], "loops": 2, "shared": False}]
    )
    with pytest.raises(ValueError, match="only some of them are named"):
        moefy(str(tmp_path / "run"), tmp_path / "out", 4, 2, "1")
    with pytest.raises(ValueError, match="--top-k: 5 must be from 1 to --experts 4"):
        moefy(str(tmp_path / "run"), tmp_path / "out", 4, 5)
    moefy(str(tmp_path / "run"), tmp_path / "out", 4, 2)
    with pytest.raises(ValueError, match="has ffn 'moe'"):
        moefy(str(tmp_path / "out"), tmp_path / "again", 4, 2, "0")
    with pytest.raises(ValueError, match="no dense layer"):
        moefy(str(tmp_path / "out"), tmp_path / "again", 4, 2)
