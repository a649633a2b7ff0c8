"""The two grouped operators: registered properly, equal to products by hand, differentiable twice."""

import pytest
import torch

from depthkit.kernels.experts.grouped import sort_by_expert
from depthkit.kernels.experts.grouped_mm import grouped_linear, grouped_outer, implementation

ENDS = torch.tensor([2, 2, 5, 6], dtype=torch.int32)
BOUNDS = [(0, 2), (2, 2), (2, 5), (5, 6)]


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def linear_by_hand(x, weight):
    return torch.cat([x[a:b] @ w.t() for (a, b), w in zip(BOUNDS, weight.unbind(), strict=True)])


def outer_by_hand(a, b):
    return torch.stack([a[start:end].t() @ b[start:end] for start, end in BOUNDS])


@pytest.mark.parametrize(("inputs", "outputs"), [(8, 4), (5, 3), (8, 3), (5, 4)])
def test_the_operators_equal_products_by_hand(inputs, outputs):
    x, weight, grad = draw(6, inputs), draw(4, outputs, inputs, seed=1), draw(6, outputs, seed=2)
    torch.testing.assert_close(grouped_linear(x, weight, ENDS), linear_by_hand(x, weight))
    torch.testing.assert_close(grouped_outer(grad, x, ENDS), outer_by_hand(grad, x))


def test_any_strides_will_do():
    x, weight = draw(5, 6).t(), draw(5, 3, 4, seed=1).permute(2, 1, 0)
    torch.testing.assert_close(grouped_linear(x, weight, ENDS), linear_by_hand(x, weight))
    grad = draw(1, 3).expand(6, 3)
    torch.testing.assert_close(grouped_outer(grad, x, ENDS), outer_by_hand(grad, x))


@pytest.mark.parametrize("operator", ["grouped_linear", "grouped_outer"])
def test_the_operators_are_registered_properly(operator):
    second = {"grouped_linear": draw(4, 3, 5, seed=1), "grouped_outer": draw(6, 3, seed=1)}[operator]
    arguments = (draw(6, 5).requires_grad_(), second.requires_grad_(), ENDS)
    torch.library.opcheck(getattr(torch.ops.depthkit, operator).default, arguments)


def second_order(linear):
    x, weight = draw(6, 5).requires_grad_(), draw(4, 3, 5, seed=1).requires_grad_()
    first = torch.autograd.grad((linear(x, weight) ** 3).sum(), (x, weight), create_graph=True)
    return torch.autograd.grad(sum((g**2).sum() for g in first), (x, weight))


def test_second_derivatives_equal_those_by_hand():
    got = second_order(lambda x, weight: grouped_linear(x, weight, ENDS))
    torch.testing.assert_close(got, second_order(linear_by_hand), rtol=1e-4, atol=1e-3)


def test_a_low_precision_product_keeps_the_gradient_of_its_weight_in_full():
    weight = draw(4, 3, 5).requires_grad_()
    y = grouped_linear(draw(6, 5, seed=1).bfloat16(), weight, ENDS)
    y.sum().backward()
    assert y.dtype is torch.bfloat16
    assert weight.grad.dtype is torch.float32


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
