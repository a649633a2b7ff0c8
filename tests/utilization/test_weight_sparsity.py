"""Weight metrics against closed forms, and that no parameter is passed over."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from depthkit.utilization import evaluate
from depthkit.utilization.probes.weight_sparsity import below, gini, hoyer, matrices, stable_rank
from tests.models import make_model
from tests.utilization.families import family
from tests.utilization.models import Model, Scale, mixing, tokens

PROBE = "weight_sparsity"


def measured(model, vocab=13, probe=PROBE):
    return evaluate(model, tokens(2, 5, vocab=vocab), [probe])


@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (7, 3), (4, 4)])
def test_all_alike_and_a_single_one(rows, columns):
    alike, single = torch.full((rows, columns), -0.3), torch.zeros(rows, columns)
    single[0, 1] = 5.0
    count = rows * columns
    assert hoyer(alike) == pytest.approx(0, abs=1e-6)
    assert hoyer(single) == pytest.approx(1)
    assert gini(alike) == pytest.approx(0, abs=1e-12)
    assert gini(single) == pytest.approx(1 - 1 / count)
    assert stable_rank(alike) == pytest.approx(1, rel=1e-5)
    assert stable_rank(single) == pytest.approx(1)
    assert below(alike, 0.1) == 0
    assert below(single, 0.1) == pytest.approx(1 - 1 / count)


def test_against_other_statements():
    """Hoyer by norms, Gini by the mean absolute difference, stable rank by singular values."""
    w = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    x = w.double().abs().flatten().numpy()
    n = len(x)
    norms = np.linalg.norm(x, 1) / np.linalg.norm(x)
    assert hoyer(w) == pytest.approx((math.sqrt(n) - norms) / (math.sqrt(n) - 1), rel=1e-6)
    difference = np.abs(x[:, None] - x[None]).mean()
    assert gini(w) == pytest.approx(difference / 2 / x.mean(), rel=1e-6)
    singular = np.linalg.svd(w.numpy(), compute_uv=False)
    assert stable_rank(w) == pytest.approx((singular**2).sum() / singular[0] ** 2, rel=1e-5)
    assert stable_rank(w.T) == pytest.approx(stable_rank(w), rel=1e-5)
    for tau in (1e-3, 0.1, 1.0):
        assert below(w, tau) == pytest.approx((x < tau * math.sqrt((x**2).mean())).mean())


def test_a_normal_matrix():
    """|w| < tau sigma has probability erf(tau / sqrt 2); Gini sqrt 2 - 1; Hoyer tends to 1 - sqrt(2 / pi)."""
    w = 0.02 * torch.randn(800, 500, generator=torch.Generator().manual_seed(1))
    for tau in (1e-2, 1e-1):
        assert below(w, tau) == pytest.approx(math.erf(tau / math.sqrt(2)), rel=0.05)
    assert gini(w) == pytest.approx(math.sqrt(2) - 1, rel=0.01)
    assert hoyer(w) == pytest.approx(1 - math.sqrt(2 / math.pi), rel=0.02)
    assert stable_rank(w) == pytest.approx(800 * 500 / (math.sqrt(800) + math.sqrt(500)) ** 2, rel=0.03)


def test_orthogonal_matrices_and_scale():
    q = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(2))).Q
    assert stable_rank(q) == pytest.approx(6, rel=1e-5)
    for measure in (hoyer, gini, stable_rank, lambda w: below(w, 0.1)):
        assert measure(1e-3 * q) == pytest.approx(measure(q), rel=1e-4)


def test_zeros_are_sparse_and_have_no_shape():
    zeros = torch.zeros(3, 4)
    assert below(zeros, 1e-3) == 1
    assert all(math.isnan(measure(zeros)) for measure in (hoyer, gini, stable_rank))


def test_experts_are_matrices_of_their_own():
    stack = torch.randn(4, 3, 5)
    assert torch.equal(matrices(stack), stack)
    assert matrices(torch.randn(7)).shape == (1, 1, 7)
    assert matrices(torch.randn(2, 3, 4, 5)).shape == (2, 3, 20)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_every_parameter_of_a_family_is_covered(name):
    report = measured(family(name), vocab=97)
    assert report.scalar("param_coverage") == 1.0
    assert not report.content["skipped"]
    assert all(0 < value < 1 for value in report.per_visit("weight_gini.layer"))


def test_fused_experts_move_the_layer():
    model = family("qwen3_moe")
    before = measured(model, vocab=97).per_visit("weight_below@0.1.layer")
    experts = model.model.layers[2].mlp.experts
    with torch.no_grad():
        experts.down_proj[1:].zero_()
    after = measured(model, vocab=97).per_visit("weight_below@0.1.layer")
    share = experts.down_proj.numel() / sum(p.numel() for p in model.model.layers[2].parameters())
    gained = share * 7 / 8 * (1 - below(experts.down_proj[0], 0.1))
    assert after[2] - before[2] == pytest.approx(gained, rel=0.05)
    assert after[:2] + after[3:] == before[:2] + before[3:]


def test_a_layer_is_the_mean_of_its_parameters_by_size():
    model = mixing(2)
    report = measured(model)
    table = report.arrays["weight_hoyer.by_parameter"]
    sizes = np.array([p.numel() for p in model.layers[0].parameters()])
    assert report.per_visit("weight_hoyer.layer") == pytest.approx((table * sizes).sum(1) / sizes.sum())
    ranks = report.arrays["stable_rank.by_parameter"]
    assert np.isnan(ranks[:, [1, 3]]).all()  # biases are no matrices
    names = report.content["matrices"]["stable_rank.by_parameter"]["columns"]
    assert names == "parameter: 0 inner.weight, 1 inner.bias, 2 outer.weight, 3 outer.bias"


def test_visits_of_a_layer_share_its_value():
    report = measured(make_model(depth=2, loops=3), vocab=31)
    values = report.per_visit("stable_rank.layer")
    assert values[:2] * 3 == values
    assert values[0] != values[1]
    assert report.arrays["stable_rank.by_parameter"].shape[0] == 2


def test_numbers_that_cannot_be_read_lower_the_coverage():
    model = mixing(2)
    model.layers[1].packed = nn.Parameter(torch.ones(50, dtype=torch.uint8), requires_grad=False)
    report = measured(model)
    total = sum(p.numel() for layer in model.layers for p in layer.parameters())
    assert report.scalar("param_coverage") == pytest.approx(1 - 50 / total)
    assert report.content["skipped"][0]["metric"] == "param_coverage"


def test_layers_without_parameters_have_nulls():
    report = measured(Model([Scale(2.0)]))
    assert report.per_visit("weight_gini.layer") == [None]
    assert report.scalar("param_coverage") is None


def test_thresholds_are_a_setting():
    report = measured(mixing(1), probe={"kind": PROBE, "thresholds": [0.5]})
    assert [name for name in report.metrics if "below" in name] == ["weight_below@0.5.layer"]
