"""Flat storage changes where parameters are kept, not what the update does."""

import copy

import pytest
import torch
from torch import nn

from depthkit.training.optimizers.flat import FlatAdamW

BETAS = (0.9, 0.95)


def parameters():
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 5), (7,), (1,), (2, 3, 4)]
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def groups(found):
    settings = [{"lr": 0.1, "eps": 1e-8, "weight_decay": 0.1}, {"lr": 0.02, "eps": 1e-6, "weight_decay": 0.0}]
    return [{**settings[0], "params": found[:2]}, {**settings[1], "params": found[2:]}]


def pair():
    plain, flat = parameters(), parameters()
    return (
        plain,
        flat,
        torch.optim.AdamW(groups(plain), betas=BETAS, fused=True),
        FlatAdamW(groups(flat), BETAS),
    )


def give(step, *models, without=()):
    for model in models:
        generator = torch.Generator().manual_seed(step)
        for index, parameter in enumerate(model):
            gradient = torch.randn(parameter.shape, generator=generator)
            parameter.grad = None if index in without else gradient


def assert_equal(plain, flat):
    for a, b in zip(plain, flat, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)  # vector units round other places together


def test_equals_adamw_up_to_rounding():
    plain, flat, one, other = pair()
    for step in range(5):
        give(step, plain, flat)
        one.step()
        other.step()
        assert_equal(plain, flat)


@pytest.mark.parametrize("without", [(0,), (1, 3), (0, 1, 2, 3)])
def test_parameters_without_a_gradient_are_left_alone(without):
    plain, flat, one, other = pair()
    for step in range(6):
        give(step, plain, flat, without=without if step in (2, 3) else ())
        one.step()
        other.step()
        assert_equal(plain, flat)


def test_scaling_what_it_gathers_scales_the_update():
    plain, flat, one, other = pair()
    give(0, plain, flat)
    for gradient in other.gradients():
        gradient.mul_(0.5)
    for parameter in plain:
        parameter.grad *= 0.5
    assert_equal([p.grad for p in plain], [p.grad for p in flat])
    one.step()
    other.step()
    assert_equal(plain, flat)


@pytest.mark.parametrize("without", [(), (2,)])
def test_state_comes_back(without):
    _, flat, _, other = pair()
    for step in range(3):
        give(step, flat, without=without)
        other.step()
    again = parameters()
    restored = FlatAdamW(groups(again), BETAS)
    with torch.no_grad():
        for a, b in zip(again, flat, strict=True):
            a.copy_(b)
    restored.load_state_dict(copy.deepcopy(other.state_dict()))
    for step in range(3, 6):
        give(step, flat, again)
        other.step()
        restored.step()
        assert_equal(flat, again)


def test_parameters_of_a_group_share_storage():
    flat = parameters()
    FlatAdamW(groups(flat), BETAS)
    addresses = [p.untyped_storage().data_ptr() for p in flat]
    assert addresses[0] == addresses[1] != addresses[2] == addresses[3]
    assert all(p.data_ptr() % 64 == flat[0].data_ptr() % 64 for p in flat[:2])
