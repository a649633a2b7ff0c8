import pytest
import torch

from depthkit.model.registries import NORMS


def build(kind, dim=7, **settings):
    cls = NORMS.get(kind)
    norm = cls(cls.Config(**settings), dim).double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_()
    return norm


def rms(norm, x):
    return norm.weight * x / (x.square().mean(-1, keepdim=True) + norm.config.eps).sqrt()


def layer(norm, x):
    centred = x - x.mean(-1, keepdim=True)
    return (
        norm.weight * centred / (centred.square().mean(-1, keepdim=True) + norm.config.eps).sqrt() + norm.bias
    )


@pytest.mark.parametrize(("kind", "formula"), [("rms", rms), ("layer", layer)])
@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_norms_equal_their_formula_with_gradients(kind, formula, eps):
    norm = build(kind, eps=eps)
    x = (torch.randn(3, 5, 7) * 1e-2).double().requires_grad_()
    got, stats = norm(x)
    assert stats is None
    expected = formula(norm, x)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-6)
    inputs = [x, *norm.parameters()]
    weight = torch.randn(3, 5, 7)
    for a, b in zip(
        torch.autograd.grad((got * weight).sum(), inputs),
        torch.autograd.grad((expected * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_statistics_are_fp32_under_a_bf16_input():
    norm = build("rms").float()
    x = torch.randn(4, 7).to(torch.bfloat16)
    got, _ = norm(x)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, rms(norm, x.float()), rtol=1e-5, atol=1e-6)


def test_none_is_the_identity():
    x = torch.randn(2, 7)
    assert build("none")(x)[0] is x


@pytest.mark.parametrize("role", ["mixer", "ffn", "after", "embed", "final"])
@pytest.mark.parametrize("gain", [True, False])
@pytest.mark.parametrize("kind", NORMS.names())
def test_parameter_count_is_as_declared_and_reset_fills_everything(kind, gain, role):
    cls = NORMS.get(kind)
    with torch.device("meta"):
        norm = cls(cls.Config(), 7, gain, role)
    assert sum(p.numel() for p in norm.parameters()) == cls.Config().num_parameters(7, gain)
    norm = norm.to_empty(device="cpu")
    for tensor in (*norm.parameters(), *norm.buffers()):
        tensor.detach().fill_(-77)
    for module in norm.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    assert not any((tensor == -77).any() for tensor in (*norm.parameters(), *norm.buffers()))
    assert torch.isfinite(norm(torch.randn(2, 7), role=role)[0]).all()
