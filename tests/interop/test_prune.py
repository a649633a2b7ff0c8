"""`drop=`: a checkpoint without some layers that does what skipping them does, or nothing at all."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from depthkit.interop.prune import RECORD, TOLERANCE, prune, shortened
from depthkit.utilization.options import EvalOptions
from tests.utilization.families import WITHOUT_SDPA, family

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A file of token ids; models are saved beside it."""
    folder = tmp_path_factory.mktemp("place")
    np.save(folder / "ids.npy", np.random.default_rng(0).integers(3, 97, 300))
    return folder


def saved(place, name, **settings):
    """A saved tiny model of a family, six layers unless said otherwise."""
    folder = place / f"{name}{len(settings)}"
    family(name, **settings).save_pretrained(folder)
    return folder


def options(place, out, drop, name="", **settings):
    raw = {
        "data": str(place / "ids.npy"),
        "sequences": 4,
        "sequence_length": 12,
        "drop": drop,
        "out": str(out),
    }
    attention = {"attn_implementation": "eager"} if name in WITHOUT_SDPA else {}
    return EvalOptions.model_validate(raw | attention | settings)


def hooked_loss(model, ids, layers, removed):
    """Loss with hooks that hand a layer's input on, in one full forward: nothing of depthkit."""

    def passing(module, args, output):
        return (args[0], *output[1:]) if isinstance(output, tuple) else args[0]

    handles = [layers[layer].register_forward_hook(passing) for layer in removed]
    with torch.no_grad():
        logits = model(ids[:, :-1], use_cache=False).logits
    for handle in handles:
        handle.remove()
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))


@pytest.mark.parametrize("name", ["llama", "gemma2", "mixtral", "deepseek_v3"])
def test_what_is_written_does_what_skipping_does(place, tmp_path, name):
    """gemma2 alternates windows and full attention by place; deepseek_v3 begins with a dense layer."""
    source = saved(place, name)
    folder, found = prune(str(source), options(place, tmp_path / "out", [0, 3], name))
    assert folder == tmp_path / "out"
    assert found.removed_layers == [0, 3]
    assert found.kept_layers == [1, 2, 4, 5]
    assert abs(found.loss_written - found.loss_skipped) <= TOLERANCE
    ids = torch.from_numpy(np.load(place / "ids.npy"))[:104].view(8, 13)
    whole = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager")
    short = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    assert len(short.model.layers) == short.config.num_hidden_layers == 4
    skipped = hooked_loss(whole, ids, whole.model.layers, [0, 3])
    assert hooked_loss(short, ids, short.model.layers, []) == pytest.approx(skipped, abs=1e-5)
    assert skipped != pytest.approx(hooked_loss(whole, ids, whole.model.layers, []), abs=1e-3)


def test_the_record_counts_from_0(place, tmp_path):
    _, found = prune(str(saved(place, "llama")), options(place, tmp_path / "out", [4, 3]))
    record = json.loads((tmp_path / "out" / RECORD).read_text())
    assert (record["removed_layers"], record["kept_layers"]) == ([3, 4], [0, 1, 2, 5])
    assert record["loss_skipped"] == found.loss_skipped
    assert record["data"]["n_seq"] == 4
    assert "Removed 2 of 6 layers (from 0): 3, 4." in found.sentence


def test_weights_stay_in_their_number_type(place, tmp_path):
    source = place / "half"
    family("llama").bfloat16().save_pretrained(source)
    prune(str(source), options(place, tmp_path / "out", 2))
    assert AutoConfig.from_pretrained(tmp_path / "out").dtype == torch.bfloat16
    whole, short = (AutoModelForCausalLM.from_pretrained(f, dtype="auto") for f in (source, tmp_path / "out"))
    for kept, layer in enumerate([0, 1, 3, 4, 5]):
        mine, theirs = short.model.layers[kept].state_dict(), whole.model.layers[layer].state_dict()
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_the_tokenizer_comes_along(place, tmp_path):
    source = saved(place, "llama")
    (source / "tokenizer_config.json").write_text("{}")
    (source / "model.bin").write_text("not ours")
    prune(str(source), options(place, tmp_path / "out", 2))
    (source / "tokenizer_config.json").unlink()
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"tokenizer_config.json", "config.json", "model.safetensors", RECORD} <= names
    assert "model.bin" not in names


def test_what_depends_on_a_place_is_refused(place, tmp_path):
    """Attention scaled by the layer's number: a shorter model would scale otherwise."""
    model = family("gpt2", scale_attn_by_inverse_layer_idx=True)
    with torch.no_grad():
        for layer in model.transformer.h:
            layer.ln_1.weight.fill_(3.0)  # so that attention looks somewhere
    source = place / "scaled"
    model.save_pretrained(source)
    with pytest.raises(
        ValueError, match=r"without layers \[1\]: the loss would be .* depends on a layer's place"
    ):
        prune(str(source), options(place, tmp_path / "out", 1))
    assert list(tmp_path.iterdir()) == []
    prune(str(source), options(place, tmp_path / "out", 5))  # the last one moves no other


def test_a_config_that_places_layers_by_rule_is_refused(place, tmp_path):
    """Every second layer is a mixture: without layer 0 the rule would put them elsewhere."""
    source = saved(place, "qwen3_moe", decoder_sparse_step=2)
    with pytest.raises(ValueError, match=r"cannot be written without layers \[0\]"):
        prune(str(source), options(place, tmp_path / "out", 0))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("drop", "message"),
    [
        ([6], r"has layers 0 to 5, no 6"),
        ([-1], r"has layers 0 to 5, no -1"),
        ([1, 1], "names a layer twice"),
        ([0, 1, 2, 3, 4, 5], "these are all layers"),
    ],
)
def test_layers_that_cannot_go(place, tmp_path, drop, message):
    with pytest.raises(ValueError, match=message):
        prune(str(saved(place, "llama")), options(place, tmp_path / "out", drop))


def test_a_folder_of_something_else_is_left_alone(place, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="exists and was not written by drop"):
        prune(str(saved(place, "llama")), options(place, tmp_path, 2))
    prune(str(saved(place, "llama")), options(place, tmp_path / "out", 2))
    prune(str(saved(place, "llama")), options(place, tmp_path / "out", [2, 3]))
    assert json.loads((tmp_path / "out" / RECORD).read_text())["removed_layers"] == [2, 3]


def test_config_lists_and_counts():
    config = AutoConfig.for_model("qwen3_moe", num_hidden_layers=6, mlp_only_layers=[1, 4, 5])
    short = shortened(config, [0, 2, 4, 5], 6)
    assert (short.num_hidden_layers, short.mlp_only_layers) == (4, [2, 3])
    assert (config.num_hidden_layers, config.mlp_only_layers) == (6, [1, 4, 5])
    types = ["sliding_attention", "full_attention"] * 3
    gemma = shortened(AutoConfig.for_model("gemma2", num_hidden_layers=6, layer_types=types), [0, 1, 3, 5], 6)
    assert gemma.layer_types == ["sliding_attention", *["full_attention"] * 3]


def test_from_the_command_line(script, place, tmp_path, capsys, monkeypatch):
    source = saved(place, "llama")
    monkeypatch.chdir(tmp_path)
    words = [str(source), f"data={place / 'ids.npy'}", "sequences=4", "sequence_length=12"]
    assert script.main([*words, "drop=[3,4]"]) == 0
    assert "Removed 2 of 6 layers" in capsys.readouterr().out
    assert (tmp_path / "pruned" / f"{source.name}-without-3-4" / RECORD).is_file()
    assert script.main([*words, "drop=[9]"]) == 2
    assert "layers 0 to 5, no 9" in capsys.readouterr().err
