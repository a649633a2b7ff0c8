"""Blocks of rows against the loop in float64, over one block, whole blocks and a rest."""

from dataclasses import replace

import pytest
import torch

from depthkit.kernels.attention import attend, prepare, rows, survey
from depthkit.kernels.attention.rows import ROWS
from tests.kernels.attention_reference import gradients, make_request, make_tensors, reference

BF16 = torch.empty(0, 8, dtype=torch.bfloat16)


@pytest.mark.parametrize(("size", "time"), [(8, 1), (8, 5), (8, 8), (8, 9), (8, 23), (ROWS, ROWS + 1)])
@pytest.mark.parametrize("kv_heads", [1, 6])
def test_equals_the_loop_with_gradients(monkeypatch, size, time, kv_heads):
    monkeypatch.setattr(rows, "ROWS", size)
    request = make_request(time, grad=True)
    tensors = make_tensors(request, kv_heads=kv_heads, dtype=torch.float32)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    expected = reference(*exact, request, 0.3)
    got = attend(*tensors, prepare("rows", request), 0.3)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, check_dtype=False)
    for a, b in zip(gradients(got, tensors), gradients(expected, exact), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, check_dtype=False)


def test_blocks_are_longer_over_long_windows_and_few():
    assert rows._blocks(ROWS + 7) == [(0, ROWS), (ROWS, ROWS + 7)]
    assert [len(rows._blocks(ROWS * n)) for n in (1, 8, 9, 16, 17)] == [1, 8, 5, 8, 6]


def test_autocast_reaches_none_of_its_products():
    """A product of bf16 rounds the scores, by more than anything else here."""
    request = make_request(70, grad=True, like=BF16)
    tensors = make_tensors(request, dtype=torch.bfloat16)
    alone = attend(*tensors, prepare("rows", request), 0.3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = attend(*tensors, prepare("rows", request), 0.3)
        found = gradients(under, tensors)
    assert torch.equal(alone, under)
    assert all(map(torch.equal, found, gradients(alone, tensors)))


def test_in_bf16_it_is_no_further_from_the_truth_than_the_fused_kernel():
    request = make_request(70, grad=True, like=BF16)
    tensors = make_tensors(request, dtype=torch.bfloat16)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    expected = reference(*exact, request, 0.3)
    truth = [expected, *gradients(expected, exact)]
    off = {}
    for name in ("rows", "sdpa"):
        got = attend(*tensors, prepare(name, request), 0.3)
        found = [got, *gradients(got, tensors)]
        off[name] = [
            float((a - b).detach().norm() / b.detach().norm()) for a, b in zip(found, truth, strict=True)
        ]
    assert all(mine < theirs for mine, theirs in zip(off["rows"], off["sdpa"], strict=True)), off


def test_auto_takes_it_where_it_gains():
    def picked(time=9, compiled=False, **options):
        request = replace(make_request(time, **options), compiled=compiled)
        return next(v.name for v in survey(request) if v.reason is None)

    assert picked(like=BF16, grad=True) == "rows"
    assert picked(like=BF16) == "sdpa"
    assert picked(grad=True) == "sdpa"
    assert picked(grad=True, compiled=True) == "rows"
    assert picked(compiled=True) == "sdpa"
    assert [picked(n, like=BF16, grad=True) for n in (512, 513)] == ["rows", "sdpa"]
    assert [picked(n, grad=True, compiled=True) for n in (512, 513)] == ["rows", "sdpa"]
    assert picked(like=BF16, grad=True, window=3) == "sdpa"


@pytest.mark.parametrize("options", [{"window": 3}, {"causal": False}, {"packed": True}])
def test_what_it_cannot_do_is_refused(options):
    with pytest.raises(ValueError, match=r"'rows' .* plain causal attention .*Usable here"):
        prepare("rows", make_request(9, **options))


def test_float64_is_refused_and_not_rounded():
    double = torch.empty(0, 8, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"'rows' .* it computes in fp32"):
        prepare("rows", make_request(9, like=double))
