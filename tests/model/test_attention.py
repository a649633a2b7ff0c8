"""`attend` and the gqa mixer against a loop over heads and positions written out in float64."""

import math

import pytest
import torch

from depthkit.kernels.attention import attention_mask, attention_probabilities, backend
from depthkit.model.rope import rotary_tables, rotate
from tests.models import make_config, make_ids, make_model, redraw


def reference(q, k, v, causal, window, documents, scale):
    batch, heads, time, _ = q.shape
    group = heads // k.shape[1]
    out = torch.zeros_like(q)
    for b in range(batch):
        for h in range(heads):
            for i in range(time):
                seen = [
                    j
                    for j in range(time)
                    if (j <= i or not causal)
                    and (window is None or abs(i - j) < window)
                    and (documents is None or documents[b, i] == documents[b, j])
                ]
                scores = torch.stack([q[b, h, i] @ k[b, h // group, j] * scale for j in seen])
                weights = scores.softmax(0)
                out[b, h, i] = sum(w * v[b, h // group, j] for w, j in zip(weights, seen, strict=True))
    return out


@pytest.mark.parametrize("name", ["eager", "sdpa", "auto"])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize(("causal", "window", "packed"), [(True, None, False), (True, 3, False), (False, None, False),
                                                          (False, 2, True), (True, None, True)])  # fmt: skip
def test_backends_equal_the_loop_with_gradients(name, kv_heads, causal, window, packed):
    torch.manual_seed(0)
    shapes = [(2, 6, 7, 5), (2, kv_heads, 7, 5), (2, kv_heads, 7, 5)]
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2], [0] * 7]) if packed else None
    expected = reference(*tensors, causal, window, documents, 0.3)
    mask = attention_mask(7, causal, window, documents, torch.device("cpu"))
    got = backend(name)(*tensors, mask, causal, 0.3)
    # The eager path forms probabilities in fp32 on purpose.
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if name == "eager" else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(got, expected, **tolerance)
    weight = torch.randn_like(expected)
    for a, b in zip(
        torch.autograd.grad((got * weight).sum(), tensors),
        torch.autograd.grad((expected * weight).sum(), tensors),
        strict=True,
    ):
        torch.testing.assert_close(a, b, **tolerance)


def test_plain_causal_needs_no_mask_and_a_wide_window_is_none():
    assert attention_mask(5, True, None, None, torch.device("cpu")) is None
    assert attention_mask(5, True, 5, None, torch.device("cpu")) is None
    assert attention_mask(5, True, 4, None, torch.device("cpu")) is not None


def test_probabilities_are_causal_and_sum_to_one():
    q, k = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8)
    weights = attention_probabilities(q, k, None, True, 0.5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 4, 6))
    assert (weights.triu(1) == 0).all()


def test_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="did you mean 'sdpa'"):
        backend("spda")


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


def mixer_model(**mixer):
    blocks = {"dense": {"mixer": {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2, **mixer}, "ffn": "gelu"}}
    return redraw(make_model(blocks=blocks))


def test_backends_agree_inside_the_model():
    ids = make_ids()
    with torch.no_grad():
        torch.testing.assert_close(
            mixer_model(backend="eager")(ids).hidden, mixer_model(backend="sdpa")(ids).hidden
        )


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
