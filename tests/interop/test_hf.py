"""Hugging Face models from a folder: what is loaded, what is recorded, what is refused and how."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from depthkit.interop import hf
from depthkit.utilization.options import EvalOptions
from tests.utilization.families import family


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A saved tiny Llama with an untied head."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    family("llama").save_pretrained(folder)
    return folder


def options(**settings):
    return EvalOptions.model_validate(settings)


def changed(folder, target, **settings):
    """A copy of a saved model with other settings in its config."""
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | settings))
    return target


def test_a_folder_is_loaded_as_it_is(llama):
    found = hf.load(str(llama), options())
    wanted = family("llama").state_dict()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in found.model.state_dict().items())
    assert not found.model.training
    assert (found.name, found.context, found.tokenizer) == ("tiny-llama", 256, None)


def test_what_could_change_a_number_is_recorded(llama):
    chosen = options(dtype="bfloat16", attn_implementation="eager")
    found = hf.load(str(llama), chosen)
    assert found.model.dtype == torch.bfloat16
    assert found.model.config._attn_implementation == "eager"
    wanted = {
        "path": str(llama),
        "revision": None,
        "dtype": "bfloat16",
        "attn_implementation": "eager",
        "trust_remote_code": False,
        "model_type": "llama",
        "num_heads": 4,
        "num_kv_heads": 2,
        "context": 256,
        "tied": False,
    }
    assert wanted.items() <= found.facts.items()


def test_the_number_type_does_not_depend_on_the_file(llama, tmp_path):
    family("llama").bfloat16().save_pretrained(tmp_path / "short")
    assert hf.load(str(tmp_path / "short"), options()).model.dtype == torch.float32


def test_a_tied_head(tmp_path):
    family("gemma").save_pretrained(tmp_path / "tied")
    assert hf.load(str(tmp_path / "tied"), options()).facts["tied"] is True


def test_a_missing_head_is_refused(llama, tmp_path):
    folder = changed(llama, tmp_path / "headless")
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"1 weights are missing, such as lm_head\.weight"):
        hf.load(str(folder), options())


def test_weights_without_a_use_are_said(llama, tmp_path):
    folder = changed(llama, tmp_path / "surplus")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.warns(UserWarning, match=r"1 weights are not used, such as .*q_proj\.bias"):
        hf.load(str(folder), options())


def broken(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def without_weights(folder):
    (folder / "model.safetensors").unlink()


def pickled(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("damage", "settings", "message"),
    [
        (broken, {}, "cannot be loaded as a causal language model"),
        (without_weights, {}, "safetensors"),
        (pickled, {}, "safetensors"),
        (
            lambda _: None,
            {"intermediate_size": 64},
            r"18 weights do not fit the config, such as .*down_proj\.weight: \[32, 48\], not \[32, 64\]",
        ),
        (lambda _: None, {"model_type": "lama"}, "cannot be loaded"),
        (
            lambda _: None,
            {
                "model_type": "own",
                "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
            },
            "trust_remote_code=true",
        ),
    ],
)
def test_folders_that_cannot_be_loaded(llama, tmp_path, damage, settings, message):
    folder = changed(llama, tmp_path / "bad", **settings)
    damage(folder)
    with pytest.raises(ValueError, match=message) as raised:
        hf.load(str(folder), options())
    assert str(folder) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_attention_that_a_family_lacks(tmp_path):
    family("bloom").save_pretrained(tmp_path / "bloom")
    with pytest.raises(ValueError, match=r"attn_implementation=sdpa: .* try attn_implementation=eager"):
        hf.load(str(tmp_path / "bloom"), options())
    assert hf.load(str(tmp_path / "bloom"), options(attn_implementation="eager")).model.config.n_layer == 6


@pytest.mark.filterwarnings("ignore:looking for")
def test_a_name_that_cannot_be_had(monkeypatch):
    """One message, for what may as well be a mistyped run."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        ValueError, match="no such run, checkpoint or model folder, and no Hugging Face"
    ) as raised:
        hf.load("nobody/nothing", options())
    assert "smollm2" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ValueError, match=r"pip install 'depthkit\[hf\]'"):
        hf.load("gpt2", options())


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("smollm2", True),
        ("gpt2", True),
        ("meta-llama/Llama-3.2-1B", True),
        ("/nowhere/at/all", False),
        ("./gpt2", False),
        ("a/b/c", False),
        ("depthkit/nothing", False),  # the folder is there, so this is a path
    ],
)
def test_what_is_taken_for_a_model(target, wanted):
    assert hf.is_pretrained(target) is wanted


def test_folders_are_told_apart_by_their_config(llama, tmp_path):
    assert hf.is_pretrained(str(llama))
    assert not hf.is_pretrained(str(tmp_path))
    (tmp_path / "config.json").write_text('{"steps": 3}')
    assert not hf.is_pretrained(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    assert not hf.is_pretrained(str(tmp_path))


def test_the_library_is_quiet_only_inside():
    transformers = hf.import_transformers()
    level, bars = transformers.logging.get_verbosity(), transformers.utils.logging.is_progress_bar_enabled()
    with hf.quiet(transformers):
        assert transformers.logging.get_verbosity() == transformers.logging.CRITICAL
        assert not transformers.utils.logging.is_progress_bar_enabled()
    assert transformers.logging.get_verbosity() == level
    assert transformers.utils.logging.is_progress_bar_enabled() == bars
