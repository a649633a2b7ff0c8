"""Hugging Face models in depthkit's blocks: equal logits and gradients, and refusals that name the feature."""

import json

import pytest
import torch
from torch.nn import functional as F

from depthkit.interop import convert, imports
from depthkit.interop.families import FAMILIES
from depthkit.model import account
from depthkit.training import checkpoint
from tests.utilization.families import family

ZERO_BIASES = ("attention.dense.bias", "mlp.dense_h_to_4h.bias", "mlp.dense_4h_to_h.bias")
LOCAL = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
CASES = {
    "llama": {},
    "llama tied": {"tie_word_embeddings": True},
    "llama eps": {"rms_norm_eps": 1e-2},
    "llama wide heads": {"head_dim": 12},
    "llama base": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "mistral": {},
    "qwen2": {},
    "qwen2 local": LOCAL,
    "qwen3": {},
    "qwen3 local": LOCAL,
    "olmo2": {},
    "mixtral": {},
    "qwen3_moe": {"norm_topk_prob": True},
    "qwen3_moe dense": {"mlp_only_layers": [1]},
    "olmoe": {},
    "gpt_neox": {"use_parallel_residual": False, "rotary_pct": 1.0},
}


def theirs(case, **settings):
    """A model of the case's family whose biases that depthkit lacks are zero, and whose norm gains are near 1."""
    name = case.split()[0]
    model = family(name, num_hidden_layers=2, **CASES[case] | settings)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(ZERO_BIASES):
                parameter.zero_()
            elif "norm" in parameter_name and parameter_name.endswith("weight"):
                parameter.add_(1)
    return model


def ids(batch=2, time=11):
    return torch.randint(3, 97, (batch, time), generator=torch.Generator().manual_seed(3))


def gradients(model, links, by):
    """Gradients of the cross-entropy by our names."""
    found = {name: p.grad for name, p in model.named_parameters()}
    return (
        found
        if by == "ours"
        else {
            ours: part
            for link in links
            if link.ours
            for ours, part in zip(link.ours, link.split(found[link.theirs]), strict=True)
        }
    )


@pytest.mark.parametrize("case", CASES)
def test_logits_and_gradients_are_theirs_and_back_is_the_same_model(case):
    original = theirs(case)
    model = convert.from_hf(original)
    x = ids()
    wanted, found = original(x).logits, convert.logits(model, x)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    for logits in (wanted, found):
        F.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten()).backward()
    decoder = convert.decoder_of(model.config)
    links = list(FAMILIES.get(case.split()[0])().links(decoder))
    ours, others = gradients(model, links, "ours"), gradients(original, links, "theirs")
    assert ours.keys() == others.keys()
    assert all(grad.abs().max() > 0 for name, grad in ours.items() if not name.endswith("k.bias"))
    for name, grad in ours.items():
        torch.testing.assert_close(grad, others[name], rtol=1e-4, atol=1e-6, msg=name)
    again = convert.to_hf(model, case.split()[0], 256, bos=1, eos=2)
    assert type(again) is type(original)
    for name, tensor in original.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


@pytest.mark.parametrize("case", ["olmo2", "qwen2", "mixtral"])
def test_parameters_are_accounted_for(case):
    model = convert.from_hf(theirs(case))
    assert account(model.config, 8).stored == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("gemma", {}, "unknown architecture 'gemma'"),
        ("qwen2_moe", {}, r"unknown architecture 'qwen2_moe'; did you mean 'qwen3_moe'\?"),
        ("llama", {"attention_bias": True}, r"llama with attention_bias True \(only False\)"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "rope_parameters.rope_type 'linear'",
        ),
        ("olmoe", {"clip_qkv": 3.0}, "clip_qkv 3.0"),
        ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise 0.1"),
        ("gpt_neox", {}, "use_parallel_residual True .*partial_rotary_factor 0.25"),
        ("gpt_neox", {"use_parallel_residual": False, "rotary_pct": 1.0}, "bias is not zero"),
    ],
)
def test_what_cannot_be_expressed_is_named(name, settings, message):
    with pytest.raises(ValueError, match=message):
        convert.from_hf(family(name, **settings))


def test_a_weight_without_a_place_is_named():
    model = theirs("llama")
    model.model.layers[1].self_attn.q_proj.bias = torch.nn.Parameter(torch.ones(32))
    with pytest.raises(ValueError, match=r"no place for, such as model\.layers\.1\.self_attn\.q_proj\.bias"):
        convert.from_hf(model)


def test_logits_that_differ_are_refused():
    original = theirs("llama")
    model = convert.from_hf(original)
    with torch.no_grad():
        model.layers[0].ffn.branch.up.weight.mul_(1.5)
    with pytest.raises(ValueError, match="standard deviations: the conversion is not exact"):
        convert.check_equal(model, original, 256)


def test_dropout_is_said():
    with pytest.warns(UserWarning, match=r"attention_dropout 0\.1 is not taken over"):
        convert.from_hf(theirs("llama", attention_dropout=0.1))


def test_a_folder_becomes_a_run(tmp_path):
    theirs("qwen3").save_pretrained(tmp_path / "model")
    out = imports.import_model(str(tmp_path / "model"), tmp_path / "run", ["train.steps=7"])
    loaded = checkpoint.load(out)
    assert (loaded.step, loaded.config.train.steps) == (0, 7)
    assert loaded.config.train.init_from.path == str(loaded.path)
    torch.testing.assert_close(convert.logits(loaded.model, ids()), theirs("qwen3")(ids()).logits)
    assert json.loads((out / "origin.json").read_text())["model_type"] == "qwen3"
    with pytest.raises(ValueError, match="already holds something"):
        imports.import_model(str(tmp_path / "model"), out)


def test_a_folder_that_is_no_model(tmp_path):
    (tmp_path / "config.json").write_text('{"hidden_size": 3}')
    with pytest.raises(ValueError, match="not a Hugging Face model"):
        imports.import_model(str(tmp_path), tmp_path / "run")


def test_a_refusal_names_the_source(tmp_path):
    family("gemma").save_pretrained(tmp_path / "gem")
    with pytest.raises(ValueError, match="gem: unknown architecture 'gemma'"):
        imports.import_model(str(tmp_path / "gem"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
