"""What must not matter to probes of states, Jacobians and gradients: pads, order, micro-batches, depth 1."""

import numpy as np
import pytest
import torch

from depthkit.utilization import Sequences, evaluate
from depthkit.utilization.sequences import IGNORED
from tests.models import make_ids, make_model, redraw
from tests.utilization import models

PROBES = [
    "branch_contribution",
    {"kind": "usefulness", "ridge": 1e-3},
    "effective_rank",
    {"kind": "cka", "max_tokens": 40},
    {"kind": "jacobian", "probes": 2, "token_probes": 2, "iterations": 3},
    "gradient_norm",
]


@pytest.fixture(scope="module")
def model():
    return redraw(make_model(depth=3), std=0.3).eval()


@pytest.fixture(scope="module")
def plain(model):
    return evaluate(model, make_ids(8, 13), PROBES)


def same(one, other, rtol=1e-3):
    assert one.metrics == other.metrics
    for name in one.metrics:
        values = [np.array(report.per_visit(name), float) for report in (one, other)]
        assert np.isfinite(values[0]).any(), name
        np.testing.assert_allclose(*values, rtol=rtol, atol=1e-5, err_msg=name)
    for name, scalar in one.content["scalars"].items():
        if isinstance(scalar["value"], float):
            assert other.scalar(name) == pytest.approx(scalar["value"], rel=rtol, abs=1e-5), name
    for name in ("cka.all_tokens", "cka.no_token0"):
        np.testing.assert_allclose(one.arrays[name], other.arrays[name], rtol=rtol)


def test_micro_batches(model, plain):
    same(plain, evaluate(model, make_ids(8, 13), PROBES, batch_tokens=36))


def test_order_of_windows(model, plain):
    same(plain, evaluate(model, make_ids(8, 13).flip(0), PROBES, batch_tokens=24))


def test_pads_at_the_end(model, plain):
    windows = make_ids(8, 13)
    pad = torch.zeros(8, 3, dtype=torch.int64)
    ids, targets = torch.cat([windows[:, :-1], pad], 1), torch.cat([windows[:, 1:], pad + IGNORED], 1)
    padded = Sequences.of_targets(ids, targets)
    assert int(padded.mask.sum()) == 8 * 12
    same(plain, evaluate(model, padded, PROBES))


def test_another_seed_draws_otherwise(model, plain):
    other = evaluate(model, make_ids(8, 13), PROBES, seed=1)
    for name in ("usefulness_loss_ratio.held_out", "jacobian_distance.rms", "cka_previous.all_tokens"):
        assert other.per_visit(name) != plain.per_visit(name)
    assert other.per_visit("gradient_norm.layer") == plain.per_visit("gradient_norm.layer")


@pytest.mark.parametrize("depth", [1, 2])
def test_shallow_models_and_single_tokens(depth, tmp_path):
    report = evaluate(models.mixing(depth), models.tokens(1, 1), PROBES)
    assert report.depth == depth
    assert report.per_visit("cka_previous.all_tokens") == [None] * depth
    assert report.per_visit("usefulness_loss_ratio.held_out") == [None] * depth
    assert report.per_visit("jacobian_distance.rms_no_token0") == [None] * depth
    assert all(value > 0 for value in report.per_visit("jacobian_distance.rms"))
    assert all(value > 0 for value in report.per_visit("gradient_norm.layer"))
    report.save(tmp_path, plots=False)


def test_training_goes_on_afterwards(model):
    other = redraw(make_model(depth=2)).train()
    windows = make_ids(8, 13)
    evaluate(other, windows, PROBES)
    assert other.training
    assert all(parameter.grad is None for parameter in other.parameters())
    other(windows[:, :-1].contiguous(), targets=windows[:, 1:].contiguous()).loss.backward()
    assert all(parameter.grad is not None for parameter in other.parameters())
