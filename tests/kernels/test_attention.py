"""Every backend that runs here against a loop over heads and positions written out in float64."""

import logging

import pytest
import torch

from depthkit.kernels.attention import (
    ATTENTION,
    attend,
    attention_mask,
    attention_probabilities,
    choice,
    names,
    prepare,
    survey,
)
from depthkit.kernels.attention.masks import dense
from tests.kernels.attention_reference import CASES, gradients, make_request, make_tensors, reference

# The eager path forms probabilities in fp32 on purpose, and flex is tried in fp32.
TOLERANCE = {"eager": 1e-5, "flex": 1e-5, "sdpa": 1e-9, "auto": 1e-9}


def close(got, expected, name):
    torch.testing.assert_close(got, expected, rtol=TOLERANCE[name], atol=TOLERANCE[name], check_dtype=False)


@pytest.mark.parametrize("name", ["eager", "sdpa", "auto"])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("case", CASES)
def test_trainable_backends_equal_the_loop_with_gradients(name, kv_heads, case):
    request = make_request(grad=True, **CASES[case])
    tensors = make_tensors(request, kv_heads=kv_heads)
    expected = reference(*tensors, request, 0.3)
    got = attend(*tensors, prepare(name, request), 0.3)
    close(got, expected, name)
    for a, b in zip(gradients(got, tensors), gradients(expected, tensors), strict=True):
        close(a, b, name)


@pytest.mark.parametrize("kv_heads", [2, 6])
@pytest.mark.parametrize("case", CASES)
def test_flex_equals_the_loop_forward(kv_heads, case):
    request = make_request(**CASES[case])
    tensors = make_tensors(request, kv_heads=kv_heads, dtype=torch.float32, grad=False)
    expected = reference(*(x.double() for x in tensors), request, 0.3)
    close(attend(*tensors, prepare("flex", request), 0.3), expected, "flex")


@pytest.mark.parametrize("name", ["eager", "sdpa", "flex"])
@pytest.mark.parametrize("case", [case for case in CASES if "full" not in case])
@pytest.mark.parametrize("queries", [1, 3, 8])
def test_late_queries_equal_the_last_rows_of_the_whole(name, case, queries):
    whole = make_request(9, **CASES[case])
    late = make_request(9, queries, **CASES[case])
    q, k, v = make_tensors(whole, dtype=torch.float32, grad=False)
    expected = reference(q.double(), k.double(), v.double(), whole, 0.3)[:, :, -queries:]
    got = attend(q[:, :, -queries:], k, v, prepare(name, late), 0.3)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, check_dtype=False)


@pytest.mark.parametrize("name", ["eager", "sdpa", "flex"])
def test_documents_in_one_row_equal_documents_alone(name):
    whole = make_request(9, packed=True, batch=2)
    q, k, v = make_tensors(whole, dtype=torch.float32, grad=False)
    together = attend(q, k, v, prepare(name, whole), 0.3)
    for row, ids in enumerate(whole.documents):
        for document in ids.unique():
            own = (ids == document).nonzero()[:, 0]
            alone = make_request(len(own), batch=1)
            parts = [x[row : row + 1, :, own] for x in (q, k, v)]
            expected = attend(*parts, prepare(name, alone), 0.3)
            torch.testing.assert_close(together[row : row + 1, :, own], expected, rtol=1e-5, atol=1e-6)


def test_plain_causal_one_last_query_and_a_wide_window_need_no_mask():
    assert attention_mask(make_request(5)) is None
    assert attention_mask(make_request(5, window=5)) is None
    assert attention_mask(make_request(5, 1)) is None
    assert attention_mask(make_request(5, 3, causal=False)) is None
    assert attention_mask(make_request(5, window=4)) is not None
    assert attention_mask(make_request(5, 2)) is not None
    assert dense(make_request(5)).causal
    assert not dense(make_request(5, 1)).causal  # the last query sees all


def test_probabilities_are_causal_and_sum_to_one():
    q, k = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8)
    weights = attention_probabilities(q, k, dense(make_request(6, batch=1)), 0.5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 4, 6))
    assert (weights.triu(1) == 0).all()


def test_unknown_backend_is_refused():
    with pytest.raises(ValueError, match=r"did you mean 'sdpa'.*auto, eager, flash, flex, rows, sdpa"):
        prepare("spda", make_request())


def test_flex_refuses_to_train_on_cpu_and_says_what_can():
    with pytest.raises(
        ValueError, match=r"'flex' cannot be used here: .*no backward on CPU: train with sdpa"
    ):
        prepare("flex", make_request(grad=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_flash_without_cuda_says_so_and_what_can():
    with pytest.raises(
        ValueError, match=r"'flash' .* CUDA device.*Usable here: auto, flex, rows, sdpa, eager"
    ):
        prepare("flash", make_request())


def test_documents_of_another_length_are_refused():
    documents = torch.zeros(2, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"documents: shape \[2, 4\].*needs \[2, 7\], cached"):
        choice.Request(2, 4, 7, 8, torch.device("cpu"), torch.float32, documents=documents)


def test_auto_gives_a_reason_for_all_but_one_and_logs_it_once(caplog):
    request = make_request(grad=True)
    verdicts = survey(request)
    assert [verdict.name for verdict in verdicts if verdict.reason is None] == ["sdpa"]
    assert {verdict.name for verdict in verdicts} == set(ATTENTION.names()) == set(names()) - {"auto"}
    choice._say.cache_clear()
    with caplog.at_level(logging.INFO, "depthkit"):
        for _ in range(2):
            prepare("auto", request)
    assert len(caplog.records) == 1
    assert "auto is sdpa (flash: " in caplog.text
    assert "flex: FlexAttention has no backward on CPU" in caplog.text
    assert "eager: sdpa comes first" in caplog.text
