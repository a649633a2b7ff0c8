"""Dynamic tanh and dynamic erf against their formulas, and where they stand."""

import math

import numpy
import pytest
import torch

from depthkit.model import account
from depthkit.model.registries import NORMS
from depthkit.training.optim import parameter_groups
from tests.models import make_config, make_ids, make_model, redraw


def build(kind, dim=7, gain=True, role="final", **settings):
    cls = NORMS.get(kind)
    norm = cls(cls.Config(**settings), dim, gain, role).double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_()
    return norm


def tanh(t):
    return (t.exp() - (-t).exp()) / (t.exp() + (-t).exp())


def erf(t):
    """2 / sqrt(pi) times the integral of exp(-s^2) from 0 to t, by Gauss-Legendre quadrature of 1/2 dt'."""
    nodes, weights = (torch.tensor(a) for a in numpy.polynomial.legendre.leggauss(60))
    points = t[..., None] * (nodes + 1) / 2
    return 2 / math.sqrt(math.pi) * ((-(points**2)).exp() * weights).sum(-1) * t / 2


@pytest.mark.parametrize("gain", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["dyt", "derf"])
def test_equal_their_formula_with_gradients(kind, bias, gain):
    norm = build(kind, gain=gain, bias=bias)
    x = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    y = tanh(norm.alpha * x) if kind == "dyt" else erf(norm.alpha * x + norm.shift)
    y = norm.weight * y if gain else y
    expected = y + norm.bias if bias else y
    got, stats = norm(x)
    assert stats is None
    inputs, direction = [x, *norm.parameters()], torch.randn(3, 5, 7)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    for a, b in zip(
        torch.autograd.grad((got * direction).sum(), inputs),
        torch.autograd.grad((expected * direction).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", ["dyt", "derf"])
def test_steepness_starts_as_set_before_mixers_and_elsewhere(kind):
    norm = {"kind": kind, "alpha_mixer": 0.8, "alpha_other": 0.2}
    model = make_model(norm=norm, placement="sandwich", embed_norm=True)
    block = model.layers[1]
    assert block.mixer.before.alpha.item() == pytest.approx(0.8)
    others = (block.ffn.before, block.mixer.after_branch, block.ffn.after_branch)
    for other in (*others, model.embed_norm, model.final_norm):
        assert other.alpha.item() == pytest.approx(0.2)
        assert torch.equal(other.weight, torch.ones(16))
    assert block.mixer.before.alpha.shape == (1,)


@pytest.mark.parametrize("kind", ["dyt", "derf"])
def test_they_replace_the_final_norm_unless_it_is_named(kind):
    assert type(make_model(norm=kind).final_norm).kind == kind
    assert type(make_model(norm=kind, final_norm="rms").final_norm).kind == "rms"
    assert type(make_model(norm=kind, final_norm=False).final_norm).kind == "none"


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
@pytest.mark.parametrize("norm", ["dyt", {"kind": "dyt", "bias": True}, "derf"])
def test_the_count_is_the_built_models_in_every_placement(norm, placement):
    config = make_config(norm=norm, placement=placement, embed_norm=True)
    stored = sum(p.numel() for p in make_model(norm=norm, placement=placement, embed_norm=True).parameters())
    assert account(config, 9).stored == stored


@pytest.mark.parametrize("kind", ["dyt", "derf", "bhyt"])
def test_their_scalars_take_no_weight_decay(kind):
    model = make_model(norm=kind)
    decayed = {id(p) for g in parameter_groups(model) if g["decay_multiplier"] for p in g["params"]}
    for layer in model.layers:
        for site in (layer.mixer, layer.ffn):
            assert not decayed & {id(p) for p in site.before.parameters()}
    assert decayed


@pytest.mark.parametrize("kind", ["dyt", "derf"])
def test_outputs_are_bounded_and_fp32_under_bf16_matrices(kind):
    model, ids = redraw(make_model(norm=kind), 1.0), make_ids()
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model(ids).hidden
    bias = 0 if model.final_norm.bias is None else model.final_norm.bias.abs()
    assert hidden.dtype == torch.float32
    assert (hidden.abs() <= model.final_norm.weight.abs() + bias + 1e-6).all()
