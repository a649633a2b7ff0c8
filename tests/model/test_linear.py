"""Linear maps of one input, together and apart."""

import pytest
import torch
from torch import nn

from depthkit.model.linear import linear, together

# Dynamo itself looks at .grad of non-leaf tensors while tracing.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


class Products:
    """A backend that runs the graph as it is, and counts its matrix products."""

    def __init__(self):
        self.count = 0

    def __call__(self, graph, inputs):
        called = [node.target for node in graph.graph.nodes if node.op == "call_function"]
        self.count = sum("linear" in str(target) for target in called)
        return graph.forward


def make_maps(bias=False):
    maps = [linear(4, width, bias=bias) for width in (6, 2, 3)]
    for each in maps:
        nn.init.normal_(each.weight)
    return maps


def compiled(maps, autocast=True):
    products = Products()
    function = torch.compile(lambda x: together(x, *maps), backend=products, fullgraph=True)

    def run(x):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            return function(x)

    return run, products


def gradients(outputs, inputs):
    total = sum((y.float() * (1 + index)).sin().sum() for index, y in enumerate(outputs))
    return torch.autograd.grad(total, inputs)


def test_under_autocast_they_are_one_product_with_the_same_gradients():
    maps, x = make_maps(), torch.randn(5, 7, 4, requires_grad=True)
    inputs = [x, *(each.weight for each in maps)]
    run, products = compiled(maps)
    found = run(x)
    assert products.count == 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = [each(x) for each in maps]
    assert all(map(torch.equal, found, expected))
    for mine, theirs in zip(gradients(found, inputs), gradients(expected, inputs), strict=True):
        # The gradient of x is the sum of three rounded ones there, and one that is rounded once here.
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


def test_without_autocast_they_stay_apart():
    maps, x = make_maps(), torch.randn(5, 4)
    run, products = compiled(maps, autocast=False)
    assert all(map(torch.equal, run(x), [each(x) for each in maps]))
    assert products.count == 3


def test_a_bias_keeps_them_apart():
    run, products = compiled(make_maps(bias=True))
    run(torch.randn(5, 4))
    assert products.count == 3


def test_a_hook_runs_and_what_stands_in_the_place_of_a_map_too():
    maps, x = make_maps(), torch.randn(5, 4)
    maps[1].register_forward_hook(lambda module, inputs, output: output + 1)
    maps[2] = nn.Sequential(maps[2], nn.ReLU())
    run, _ = compiled(maps)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = [each(x) for each in maps]
    assert all(map(torch.equal, run(x), expected))
