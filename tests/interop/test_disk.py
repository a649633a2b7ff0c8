"""Layers on disk: bit for bit what a model in memory gives, two layers held, one pass a sweep."""

import gc
import warnings
from pathlib import Path

import pytest
import torch

from depthkit.interop import disk, hf
from depthkit.interop.examine import examine
from depthkit.utilization import Sequences, Subject
from depthkit.utilization.edits import skip, swap
from depthkit.utilization.options import EvalOptions
from depthkit.utilization.replay import Engine
from eval import main
from tests.utilization.families import family
from tests.utilization.models import tokens

KEPT = {"llama": {}, "gpt2": {}, "mixtral": {}, "gemma2": {"tie_word_embeddings": True}}
"""Plain, weights named without the model's prefix, experts stored one by one, tied and sliding."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name, settings in KEPT.items():
        with hf.quiet(hf.import_transformers()):
            family(name, **settings).save_pretrained(root / name, max_shard_size="60KB")
        assert len(list((root / name).glob("*.safetensors"))) > 1
    return root


def options(name="llama", **settings):
    attention = "eager" if name == "gemma2" else "sdpa"
    raw = {"attn_implementation": attention, "device": "cpu", "null": "none", **settings}
    return EvalOptions.model_validate(raw)


def both(folder, **settings):
    name = folder.name
    stored = options(name, subject={"stream": "disk"}, **settings)
    return hf.load(str(folder), options(name, **settings)), hf.load(str(folder), stored)


def windows(count=3):
    return Sequences.of(tokens(count, 9, vocab=97))


@pytest.mark.parametrize("name", KEPT)
def test_a_sweep_equals_the_one_in_memory_bitwise(folders, name):
    whole, apart = both(folders / name)
    wanted, found = (run(each, windows(), batch_tokens=18) for each in (whole, apart))
    assert wanted.keys() == found.keys()
    for key, (after, nats) in wanted.items():
        assert torch.equal(after, found[key][0])
        assert (nats is None) == (found[key][1] is None)
        assert nats is None or torch.equal(nats, found[key][1])
    assert apart.streamed.peak == 2


def run(pretrained, data, batch_tokens):
    engine = Engine(Subject(pretrained.model), data, batch_tokens)
    with engine.subject.frozen():
        traces = engine.record()
        assert len(traces) == 2
        edits = [*(skip(visit) for visit in range(6)), swap(1, 4), swap(2, 3)]
        return {
            (step.edit, step.visit, step.trace.rows.start): (
                step.after.clone(),
                step.scores and step.scores.nats,
            )
            for step in engine.sweep(traces, edits)
        }


def held(model):
    """Layers of which any weight is in memory."""
    layers = model.get_submodule("model.layers")
    return [i for i, layer in enumerate(layers) if any(not p.is_meta for p in layer.parameters())]


def test_two_layers_are_held_and_a_sweep_passes_the_weights_once(folders):
    _, apart = both(folders / "llama")
    model, most = apart.model, []
    assert held(model) == []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda *_: most.append(len(held(model))))
    engine = Engine(Subject(model), windows(), batch_tokens=18)
    with engine.subject.frozen():
        traces = engine.record()
        before = apart.streamed.reads
        list(engine.sweep(traces, [skip(visit) for visit in range(6)]))
    # Visit 0 is run by nobody; 1 to 5 by all streams of both micro-batches.
    assert apart.streamed.reads - before == 5
    assert max(most) == apart.streamed.peak == disk.MOST == 2
    assert held(model) == [4, 5]
    before = apart.streamed.reads
    apart_logits = engine.subject.read_out(traces[0].final)
    assert apart.streamed.reads == before  # the head is read out without the layers
    assert apart_logits.shape[-1] == 97


def test_everything_outside_the_layers_is_in_memory_and_buffers_are_right(folders):
    whole, apart = both(folders / "llama")
    for name, parameter in apart.model.named_parameters():
        assert parameter.is_meta == (".layers." in name)
    for (name, a), (other, b) in zip(whole.model.named_buffers(), apart.model.named_buffers(), strict=True):
        assert name == other
        assert torch.equal(a, b)
    assert not any(hasattr(module, "_hf_hook") for module in apart.model.modules())


def test_the_report_is_the_same_and_says_how_many_passes(folders):
    loaded = both(folders / "llama", probes=["stream", "ablation", "causal", "lens", "branch_contribution"])
    settings = [options(), options(subject={"stream": "disk"})]
    probes = ["stream", "ablation", "causal", "lens", "branch_contribution"]
    whole, apart = (
        examine(each, windows(), how.model_copy(update={"probes": probes}))
        for each, how in zip(loaded, settings, strict=True)
    )
    for part in ("per_visit", "scalars", "baseline", "canaries"):
        assert whole.content[part] == apart.content[part]
    assert whole.content["model"] == apart.content["model"]
    found = apart.content["timing"]["stream"]
    assert found["layers_held"] == 2
    assert found["reads"] == 6 * found["passes"]
    assert "stream" not in whole.content["timing"]


@pytest.mark.parametrize("stored", ["bfloat16", "float32"])
def test_number_types(folders, tmp_path, stored):
    with hf.quiet(hf.import_transformers()):
        family("llama").to(getattr(torch, stored)).save_pretrained(tmp_path / "m")  # one file
    whole, apart = both(tmp_path / "m", dtype="bfloat16" if stored == "float32" else "float32")
    ids = windows().ids
    with torch.no_grad():
        assert torch.equal(whole.model(ids).logits, apart.model(ids).logits)


def test_the_temporary_folder_goes_with_the_model(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(disk.tempfile, "tempdir", str(tmp_path))
    _, apart = both(folders / "mixtral")
    (folder,) = tmp_path.iterdir()
    assert len(list(folder.iterdir())) == 12  # two expert matrices a layer, in the model's own form
    del apart
    gc.collect()
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="bad: cannot be loaded"):
        (tmp_path / "bad").mkdir()
        (tmp_path / "bad" / "config.json").write_text((folders / "llama" / "config.json").read_text())
        hf.load(str(tmp_path / "bad"), options(subject={"stream": "disk"}))
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


def test_jacobians_work_and_what_needs_all_weights_says_so(folders):
    _, apart = both(folders / "llama")
    jacobian = {"kind": "jacobian", "probes": 1, "token_probes": 0, "iterations": 0}
    probes = [jacobian, "weight_sparsity", "gradient_norm"]
    report = examine(apart, windows(1), options(subject={"stream": "disk"}, probes=probes))
    assert all(value > 0 for value in report.per_visit("jacobian_distance.rms"))
    reasons = {entry["metric"]: entry["reason"] for entry in report.content["skipped"]}
    assert "not floating-point numbers in memory" in reasons["param_coverage"]
    assert reasons["gradient_norm"] == "not all weights are in memory: its layers are on disk"
    assert report.per_visit("gradient_norm.layer") == [None] * 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["null=random_init"], "null: needs a whole model in memory"),
        (["drop=[1]"], "drop: needs a whole model in memory"),
        (["subject.layers=model.layer"], "no module 'model.layer'; did you mean 'model.layers'"),
        (["subject.stream=disc"], "subject.stream"),
    ],
)
def test_refusals(folders, words, message, capsys, tmp_path):
    assert main([str(folders / "llama"), "subject.stream=disk", *words, f"out={tmp_path}"]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_from_the_command_line(folders, tmp_path, capsys):
    ids = tmp_path / "ids.npy"
    import numpy as np

    np.save(ids, tokens(4, 12, vocab=97).numpy().astype(np.uint16).ravel())
    words = [
        f"data={ids}",
        "probes=[ablation]",
        "sequences=2",
        "sequence_length=8",
        "plots=false",
        "html=false",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main([str(folders / "llama"), "subject.stream=disk", *words, f"out={tmp_path / 'out'}"]) == 0
    assert '"layers_held": 2' in Path(tmp_path / "out" / "report.json").read_text()
