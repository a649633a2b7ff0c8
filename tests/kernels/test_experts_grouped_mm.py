"""The two grouped operators: registered properly, equal to products by hand, differentiable twice."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from depthkit.kernels.experts.grouped_mm import grouped_linear, grouped_outer, implementation, linear, outer
from depthkit.kernels.experts.padded import PLACES, WASTE, Padded
from depthkit.kernels.experts.rows import sort_by_expert

ENDS = torch.tensor([2, 2, 5, 6], dtype=torch.int32)
BOUNDS = [(0, 2), (2, 2), (2, 5), (5, 6)]
WAYS = {"operators": (grouped_linear, grouped_outer), "functions": (linear, outer)}
ways = pytest.mark.parametrize("way", WAYS)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def linear_by_hand(x, weight):
    return torch.cat([x[a:b] @ w.t() for (a, b), w in zip(BOUNDS, weight.unbind(), strict=True)])


def outer_by_hand(a, b):
    return torch.stack([a[start:end].t() @ b[start:end] for start, end in BOUNDS])


@ways
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs"), [(8, 4), (5, 3), (8, 3), (5, 4)])
def test_they_equal_products_by_hand(inputs, outputs, dtype, way):
    tensors = draw(6, inputs), draw(4, outputs, inputs, seed=1), draw(6, outputs, seed=2)
    x, weight, grad = (tensor.to(dtype) for tensor in tensors)
    multiply, multiply_outer = WAYS[way]
    torch.testing.assert_close(multiply(x, weight, ENDS), linear_by_hand(x, weight))
    torch.testing.assert_close(multiply_outer(grad, x, ENDS), outer_by_hand(grad, x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_strides_will_do(dtype):
    x, weight = draw(5, 6).to(dtype).t(), draw(5, 3, 4, seed=1).to(dtype).permute(2, 1, 0)
    torch.testing.assert_close(linear(x, weight, ENDS), linear_by_hand(x, weight))
    grad = draw(1, 3).to(dtype).expand(6, 3)
    torch.testing.assert_close(outer(grad, x, ENDS), outer_by_hand(grad, x))


@pytest.mark.parametrize("operator", ["grouped_linear", "grouped_outer"])
def test_the_operators_are_registered_properly(operator):
    second = {"grouped_linear": draw(4, 3, 5, seed=1), "grouped_outer": draw(6, 3, seed=1)}[operator]
    arguments = (draw(6, 5).requires_grad_(), second.requires_grad_(), ENDS)
    torch.library.opcheck(getattr(torch.ops.depthkit, operator).default, arguments)


def second_order(multiply):
    x, weight = draw(6, 5).requires_grad_(), draw(4, 3, 5, seed=1).requires_grad_()
    first = torch.autograd.grad((multiply(x, weight) ** 3).sum(), (x, weight), create_graph=True)
    return torch.autograd.grad(sum((g**2).sum() for g in first), (x, weight))


@ways
def test_second_derivatives_equal_those_by_hand(way):
    got = second_order(lambda x, weight: WAYS[way][0](x, weight, ENDS))
    torch.testing.assert_close(got, second_order(linear_by_hand), rtol=1e-4, atol=1e-3)


@ways
def test_a_low_precision_product_keeps_the_gradient_of_its_weight_in_full(way):
    weight = draw(4, 3, 5).requires_grad_()
    y = WAYS[way][0](draw(6, 5, seed=1).bfloat16(), weight, ENDS)
    y.sum().backward()
    assert y.dtype is torch.bfloat16
    assert weight.grad.dtype is torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whoever_looks_at_operators_sees_the_registered_ones(dtype):
    x, weight = draw(6, 5).to(dtype).requires_grad_(), draw(4, 3, 5, seed=1).requires_grad_()
    with FlopCounterMode(display=False) as counter:
        linear(x, weight, ENDS).sum().backward()
    assert {str(operator) for operator in counter.get_flop_counts()["Global"]} == {
        "depthkit.grouped_linear",
        "depthkit.grouped_outer",
    }
    assert counter.get_total_flops() == 3 * 2 * 6 * 5 * 3


def test_few_rows_are_padded_in_bf16_on_a_cpu():
    padded = Padded.of(draw(6, 5).bfloat16(), ENDS)
    assert padded.places.tolist() == [0, 1, 6, 7, 8, 9]
    assert (padded.experts, padded.each) == (4, 3)
    assert Padded.of(draw(6, 5), ENDS) is None
    assert Padded.of(draw(0, 5).bfloat16(), ENDS * 0) is None
    assert Padded.of(torch.empty(6, 5, dtype=torch.bfloat16, device="meta"), ENDS) is None


def test_padding_that_would_not_pay_is_left_alone():
    rows = draw(PLACES + 1, 2).bfloat16()
    assert Padded.of(rows[:-1], torch.tensor([PLACES])) is not None
    assert Padded.of(rows, torch.tensor([PLACES + 1])) is None
    for experts in (WASTE, WASTE + 1):
        one_has_all = torch.full((experts,), 3)
        assert (Padded.of(rows[:3], one_has_all) is None) == (experts > WASTE)


def test_the_permutation_sorts_stably_and_back():
    index = torch.tensor([[3, 0], [0, 3], [3, 1]])
    order, inverse, ends = sort_by_expert(index, 5)
    assert order.tolist() == [1, 2, 5, 0, 3, 4]
    assert order[inverse].tolist() == list(range(6))
    assert ends.tolist() == [2, 3, 3, 6, 6]
    assert ends.dtype is torch.int32


def test_the_public_name_comes_first(monkeypatch):
    assert implementation() == "torch.nn.functional.grouped_mm"
    monkeypatch.delattr(torch.nn.functional, "grouped_mm")
    assert implementation() == "torch._grouped_mm"
    torch.testing.assert_close(
        grouped_linear(draw(6, 8), draw(4, 4, 8), ENDS), linear_by_hand(draw(6, 8), draw(4, 4, 8))
    )
    monkeypatch.delattr(torch, "_grouped_mm")
    assert implementation() is None
