"""The papers' mean Jacobian and mean-state similarity, against brute force."""

import numpy as np
import pytest
import torch

from depthkit.utilization import evaluate
from tests.models import make_ids, make_model, redraw
from tests.utilization import models

EXACT = [{"kind": "mean_jacobian", "directions": 64}]
NORM, ROOT, DIAGONAL = (
    "mean_jacobian_distance.over_dim",
    "mean_jacobian_distance.over_sqrt_dim",
    "mean_jacobian_diagonal.mean",
)


def brute_force(model, ids, mask):
    """Mean over input tokens of the sum over output tokens of d h_out / d h_in, layer by layer: [D, D] each."""
    found, h = [], model.embed(ids)
    for layer in model.layers:
        jacobian = torch.zeros(models.DIM, models.DIM, dtype=torch.float64)
        for row in range(len(ids)):
            real = int(mask[row].sum())
            whole = torch.autograd.functional.jacobian(layer, h[row : row + 1, :real])[0, :, :, 0]
            jacobian += whole.double().sum((0, 2))
        found.append(jacobian / int(mask.sum()))
        h = layer(h).detach()
    return found


def test_exact_with_pads():
    model, windows = models.mixing(3, seed=4), models.tokens(3, 7)
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[1, 4:] = False
    report = evaluate(model, (windows[:, :-1], windows[:, 1:], mask), EXACT, batch_tokens=7)
    for visit, jacobian in enumerate(brute_force(model, windows[:, :-1], mask)):
        norm = float((jacobian - torch.eye(models.DIM)).norm())
        assert report.per_visit(NORM)[visit] == pytest.approx(norm / models.DIM, rel=1e-5)
        assert report.per_visit(ROOT)[visit] == pytest.approx(norm / models.DIM**0.5, rel=1e-5)
        trace = float(jacobian.trace()) / models.DIM
        assert report.per_visit(DIAGONAL)[visit] == pytest.approx(trace, rel=1e-5)


def test_known_layers():
    matrix = torch.randn(models.DIM, models.DIM, generator=torch.Generator().manual_seed(1))
    layers = [models.Identity(), models.Scale(1.5), models.Linear(matrix)]
    report = evaluate(models.Model(layers), models.tokens(), EXACT)
    norms = [0.0, 0.5 * models.DIM**0.5, float((matrix - torch.eye(models.DIM)).norm())]
    assert report.per_visit(NORM) == pytest.approx([norm / models.DIM for norm in norms], abs=1e-7)
    assert report.per_visit(DIAGONAL)[:2] == pytest.approx([1.0, 1.5])


def test_few_directions_estimate_it():
    """Over many seeds the squared norm comes out right on average; one direction is no identity."""
    matrix = torch.eye(models.DIM) + 0.3 * torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    model, probe = models.Model([models.Linear(matrix)]), [{"kind": "mean_jacobian", "directions": 4}]
    reports = [evaluate(model, models.tokens(2, 3), probe, seed=seed) for seed in range(60)]
    squares = [report.per_visit(NORM)[0] ** 2 * models.DIM**2 for report in reports]
    truth = float((matrix - torch.eye(models.DIM)).square().sum())
    assert np.std(squares) > 0
    assert np.mean(squares) == pytest.approx(truth, abs=4 * np.std(squares) / 60**0.5)


def test_it_costs_what_it_says():
    report = evaluate(models.mixing(3), models.tokens(), [{"kind": "mean_jacobian", "directions": 2}])
    assert report.content["timing"]["layer_evals"] == 3 + 3 * (1 + 2 * 2)


def test_short_numbers_and_streams_are_told():
    report = evaluate(models.mixing(2).bfloat16(), models.tokens(), ["mean_jacobian"])
    assert report.per_visit(NORM) == [None, None]
    assert "float32" in report.content["skipped"][0]["reason"]
    hyper = evaluate(redraw(make_model(depth=2, stream="hyper")), make_ids(4, 10), ["mean_jacobian"])
    assert hyper.per_visit(DIAGONAL) == [None, None]
    assert "more than one residual" in hyper.content["skipped"][0]["reason"]


def test_mean_states():
    model, windows = models.mixing(3), models.tokens(4, 6)
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[2, 3:] = False
    report = evaluate(
        model, (windows[:, :-1], windows[:, 1:], mask), ["mean_state_similarity"], batch_tokens=6
    )
    h, means = model.embed(windows[:, :-1]), []
    for layer in model.layers:
        h = layer(h)
        means.append(h[mask].mean(0))
    found = report.arrays["mean_state_similarity.all_tokens"]
    for i in range(3):
        for j in range(3):
            cosine = torch.cosine_similarity(means[i], means[j], dim=0).item()
            assert found[i, j] == pytest.approx(cosine, abs=1e-6)
    assert report.per_visit("mean_state_similarity_previous.all_tokens") == [
        None,
        pytest.approx(found[0, 1]),
        pytest.approx(found[1, 2]),
    ]
