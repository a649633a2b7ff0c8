"""The gqa mixer and rotary embedding."""

import math

import pytest
import torch

from depthkit.kernels import attention
from depthkit.model import account
from depthkit.model.registries import MIXERS
from depthkit.model.rope import rotary_tables, rotate
from tests.models import make_config, make_ids, make_model, redraw


def test_rope_is_a_rotation_by_relative_position():
    tables = rotary_tables(9, 6, 100.0, torch.device("cpu"))
    x = torch.randn(9, 6)
    torch.testing.assert_close(rotate(x, tables).norm(dim=-1), x.norm(dim=-1))
    # Complex statement: channel i and i + C/2 are one complex number turned by position * base^(-2i/C).
    turn = torch.outer(torch.arange(9.0), 100.0 ** (-torch.arange(0, 6, 2) / 6))
    expected = torch.complex(x[:, :3], x[:, 3:]) * torch.polar(torch.ones_like(turn), turn)
    torch.testing.assert_close(rotate(x, tables), torch.cat([expected.real, expected.imag], -1))
    q, k = torch.randn(6).expand(9, 6), torch.randn(6).expand(9, 6)
    scores = rotate(q, tables) @ rotate(k, tables).T
    for lag in range(4):
        diagonal = scores.diagonal(-lag)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-5)


def test_rotary_tables_of_later_positions_are_the_rows_of_the_whole():
    whole, late = (
        rotary_tables(9, 6, 1e4, torch.device("cpu")),
        rotary_tables(4, 6, 1e4, torch.device("cpu"), 5),
    )
    assert all(torch.equal(a[5:], b) for a, b in zip(whole, late, strict=True))


def mixer_model(**mixer):
    blocks = {"dense": {"mixer": {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2, **mixer}, "ffn": "gelu"}}
    return redraw(make_model(blocks=blocks))


@pytest.mark.parametrize("name", ["eager", "flex"])
def test_backends_agree_inside_the_model(name):
    ids, documents = make_ids(), torch.tensor([[0] * 4 + [1] * 5, [0] * 9])
    with torch.no_grad():
        expected = mixer_model(backend="sdpa", window=3)(ids, documents=documents).hidden
        torch.testing.assert_close(
            mixer_model(backend=name, window=3)(ids, documents=documents).hidden, expected
        )


def test_flex_in_a_model_refuses_to_train_on_cpu_before_the_backward():
    with pytest.raises(ValueError, match="no backward on CPU: train with sdpa"):
        mixer_model(backend="flex")(make_ids())


def test_under_autocast_the_request_says_what_the_kernels_get(monkeypatch):
    mixer = mixer_model().layers[0].mixer.branch
    seen = []
    monkeypatch.setattr(attention, "prepare", lambda name, request: seen.append(request.dtype))
    mixer.prepare(make_ids(), None)
    with torch.autocast("cpu", torch.bfloat16):
        mixer.prepare(make_ids(), None)
    assert seen == [torch.float32, torch.bfloat16]


def test_every_backend_may_be_named_in_a_config_and_a_wrong_name_gets_the_nearest():
    config = MIXERS.get("gqa").Config
    assert [config(num_heads=2, backend=name).backend for name in attention.names()] == attention.names()
    assert config.model_json_schema()["properties"]["backend"]["enum"] == attention.names()
    with pytest.raises(ValueError, match="unknown attention backend 'flesh'; did you mean 'flash'"):
        config(num_heads=2, backend="flesh")


def test_documents_packed_together_equal_documents_alone():
    model, ids = mixer_model(), make_ids(1, 9)
    documents = torch.tensor([[0] * 4 + [1] * 5])
    with torch.no_grad():
        packed = model(ids, documents=documents).hidden
        torch.testing.assert_close(packed[:, :4], model(ids[:, :4]).hidden)
        torch.testing.assert_close(packed[:, 4:], model(ids[:, 4:]).hidden, rtol=1e-4, atol=1e-5)


def test_a_window_limits_how_far_a_change_reaches():
    model, ids = mixer_model(window=2), make_ids(1, 9)
    changed = ids.clone()
    changed[0, 0] = (changed[0, 0] + 1) % 31
    with torch.no_grad():
        same = (model(ids).hidden == model(changed).hidden).all(-1)[0]
    assert not same[:3].any()  # two layers reach one token further each
    assert same[3:].all()


def test_qk_norm_makes_scores_independent_of_the_scale_of_q():
    model, ids = mixer_model(qk_norm=True, qk_norm_eps=1e-12), make_ids()
    with torch.no_grad():
        before = model(ids).hidden
        model.layers[0].mixer.branch.q.weight *= 7
        torch.testing.assert_close(model(ids).hidden, before)


@pytest.mark.parametrize("kwargs", [{"num_heads": 4, "num_kv_heads": 4}, {"num_heads": 4}])
def test_kv_heads_equal_to_heads_is_mha(kwargs):
    blocks = {"dense": {"mixer": {"kind": "gqa", **kwargs}}}
    config = make_config(blocks=blocks)
    assert config.blocks["dense"].mixer.kv_heads == 4
    assert math.isclose(config.blocks["dense"].mixer.num_parameters(16), 4 * 16 * 16)


@pytest.mark.parametrize(("bias", "names"), [("none", ""), ("qk", "qk"), ("qkv", "qkv")])
def test_biases_start_at_zero_and_shift_what_they_say(bias, names):
    mixer = {"kind": "gqa", "num_heads": 2, "num_kv_heads": 1, "bias": bias}
    options = {"blocks": {"dense": {"mixer": mixer}}}
    model = make_model(**options)
    found = {name: p for name, p in model.named_parameters() if name.endswith(".bias")}
    assert {name.split(".")[-2] for name in found} == set(names)
    assert all(bool((p == 0).all()) for p in found.values())
    assert account(model.config, 9).stored == sum(p.numel() for p in model.parameters())
    before = model(make_ids()).hidden
    with torch.no_grad():
        for parameter in found.values():
            parameter.add_(0.5)
    assert torch.equal(model(make_ids()).hidden, before) == (bias == "none")
