"""Blocks of rows against the loop in float64, over one block, whole blocks and a rest."""

import pytest
import torch

from depthkit.kernels.attention import attend, prepare, rows, survey
from depthkit.kernels.attention.rows import ROWS
from tests.kernels.attention_reference import gradients, make_request, make_tensors, reference

BF16 = torch.empty(0, 8, dtype=torch.bfloat16)


@pytest.mark.parametrize("time", [1, 5, ROWS, ROWS + 1, 2 * ROWS + 7])
@pytest.mark.parametrize("kv_heads", [1, 6])
def test_equals_the_loop_with_gradients(time, kv_heads):
    request = make_request(time, grad=True)
    tensors = make_tensors(request, kv_heads=kv_heads, dtype=torch.float32)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    expected = reference(*exact, request, 0.3)
    got = attend(*tensors, prepare("rows", request), 0.3)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, check_dtype=False)
    for a, b in zip(gradients(got, tensors), gradients(expected, exact), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, check_dtype=False)


def test_smaller_blocks_where_the_scores_would_leave_the_cache(monkeypatch):
    request = make_request(ROWS + 7, grad=True)
    tensors = make_tensors(request, dtype=torch.float32)
    whole = attend(*tensors, prepare("rows", request), 0.3)
    expected = gradients(whole, tensors)
    monkeypatch.setattr(rows, "CACHE", 1)
    assert [end - start for start, end in rows._blocks(tensors[0].shape)] == [32, 32, 7]
    got = attend(*tensors, prepare("rows", request), 0.3)
    torch.testing.assert_close(got, whole, rtol=1e-5, atol=1e-6)
    for a, b in zip(gradients(got, tensors), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_in_bf16_it_is_no_further_from_the_truth_than_twice_the_fused_kernel():
    request = make_request(150, grad=True, like=BF16)
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
    assert all(mine < 2 * theirs for mine, theirs in zip(off["rows"], off["sdpa"], strict=True)), off


def test_auto_takes_it_for_bf16_training_on_cpus_alone():
    def picked(**options):
        return next(v.name for v in survey(make_request(9, **options)) if v.reason is None)

    assert picked(like=BF16, grad=True) == "rows"
    assert picked(like=BF16) == "sdpa"
    assert picked(grad=True) == "sdpa"
    assert picked(like=BF16, grad=True, window=3) == "sdpa"


@pytest.mark.parametrize("options", [{"window": 3}, {"causal": False}, {"packed": True}])
def test_what_it_cannot_do_is_refused(options):
    with pytest.raises(ValueError, match=r"'rows' .* plain causal attention .*Usable here"):
        prepare("rows", make_request(9, **options))
