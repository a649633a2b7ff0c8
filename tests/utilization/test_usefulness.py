"""Linear stand-ins for visits against numpy's closed form, and models in which a visit is linear."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from depthkit.utilization import Sequences, evaluate
from depthkit.utilization.draws import halves
from depthkit.utilization.usefulness_scores import excess_over_skip, log_share, loss_ratio
from tests.models import make_ids, make_model, redraw
from tests.utilization import models
from tests.utilization.models import DIM
from tests.utilization.test_probes import states

RATIO, EXCESS, SHARE = (
    f"usefulness_{name}.held_out" for name in ("loss_ratio", "excess_over_skip", "log_share")
)


def windows(count=16, length=12):
    return models.tokens(count, length)


def certain(model, count=16, length=12):
    """Windows whose targets are what the model itself predicts, so that every change does harm."""
    ids = windows(count, length)[:, :-1].contiguous()
    with torch.no_grad():
        return Sequences.of((ids, model(ids).argmax(-1), torch.ones_like(ids, dtype=torch.bool)))


def held_out_loss(model, h, data, first, held):
    """Mean nats of the held-out sequences when the layers from `first` on run on h."""
    held = torch.from_numpy(held)
    with torch.no_grad():
        for layer in model.layers[first:]:
            h = layer(h)
        return F.cross_entropy(model.read_out(h)[held].flatten(0, 1), data.targets[held].flatten()).item()


def streams(model, data):
    """h_0..h_L [N, T, D] by hand."""
    return states(model, torch.cat([data.ids, data.ids[:, :1]], 1))


def ridge(x, y, ridge=1e-6):
    """Rows of A and the offset that minimise |y - (x - mean) A - mean y|^2 / N + penalty |A|^2."""
    centred = x - x.mean(0)
    penalty = ridge * centred.var(0).mean()
    n, d = x.shape
    stacked = np.concatenate([centred / np.sqrt(n), np.sqrt(penalty) * np.eye(d)])
    target = np.concatenate([(y - y.mean(0)) / np.sqrt(n), np.zeros((d, d))])
    return np.linalg.lstsq(stacked, target, rcond=None)[0], x.mean(0), y.mean(0)


@pytest.mark.parametrize("penalty", [1e-6, 0.1])
def test_against_the_closed_form(penalty):
    model = models.mixing(3, seed=5)
    data = certain(model)
    probe = {"kind": "usefulness", "ridge": penalty, "thresholds": [1.0, 1.02]}
    report = evaluate(model, data, [probe], batch_tokens=36)
    fit, h = halves(data, 0), streams(model, data)
    intact = held_out_loss(model, h[0], data, 0, ~fit)
    ratios, shares = [], []
    for visit in range(3):
        x, y = (
            state[torch.from_numpy(fit)].double().reshape(-1, DIM).numpy() for state in h[visit : visit + 2]
        )
        matrix, mean, write = ridge(x, y - x, penalty)
        state = h[visit].double().numpy()
        made = torch.from_numpy(state + (state - mean) @ matrix + write).float()
        linear = held_out_loss(model, made, data, visit + 1, ~fit)
        skipped = held_out_loss(model, h[visit], data, visit + 1, ~fit)
        ratios.append(linear / intact)
        assert report.per_visit(RATIO)[visit] == pytest.approx(linear / intact, rel=1e-5)
        harm = skipped > intact
        share = np.clip(np.log(linear / intact) / np.log(skipped / intact), 0, 1) if harm else 0.0
        shares.append(share)
        assert report.per_visit(SHARE)[visit] == pytest.approx(share, abs=1e-4)
        if harm:
            excess = (linear - intact) / (skipped - intact)
            assert report.per_visit(EXCESS)[visit] == pytest.approx(excess, rel=1e-3)
        else:
            assert report.per_visit(EXCESS)[visit] is None
    assert report.scalar("usefulness_area") == pytest.approx(np.mean(shares), abs=1e-4)
    for x in (1.0, 1.02):
        assert report.scalar(f"useful_frac@{x:g}") == np.mean(np.array(ratios) > x)
    assert report.scalar("usefulness_held_out_sequences") == 8


@pytest.fixture(scope="module")
def linear_last():
    torch.manual_seed(0)
    matrix = torch.eye(DIM) + 0.7 * torch.randn(DIM, DIM)
    model = models.Model([models.Mixing(), models.Linear(matrix), models.Mixing(), models.Linear(matrix)])
    return model, evaluate(model, certain(model), ["usefulness", "ablation"])


def test_a_linear_visit_is_its_own_map(linear_last):
    """The last one too: what is fitted is the raw state, not the state after the final norm."""
    _, report = linear_last
    ratios, costs = report.per_visit(RATIO), report.per_visit("ablation_delta_nats.skip")
    for visit in (1, 3):
        assert ratios[visit] == pytest.approx(1.0, abs=1e-4)
        assert abs(report.per_visit(SHARE)[visit]) < 1e-2
        assert costs[visit] > 0.1
    assert ratios[2] > 1.05


def test_a_transposed_map_would_be_noticed(linear_last):
    model, _ = linear_last
    data = certain(model)
    h, held = streams(model, data), ~halves(data, 0)
    intact = held_out_loss(model, h[0], data, 0, held)
    with torch.no_grad():
        wrong = h[3] @ model.layers[3].matrix
    assert held_out_loss(model, wrong, data, 4, held) > 1.1 * intact


def test_the_fit_is_not_scored_on_what_it_saw():
    """With barely more tokens than features an in-sample loss would look as if every visit were linear."""
    torch.manual_seed(1)
    wide = 40
    model = models.Model([models.Mixing(wide, 2.0) for _ in range(2)], dim=wide)
    data = certain(model, 8, 11)
    report = evaluate(model, data, ["usefulness"])
    assert report.per_visit(RATIO)[0] > 2
    h, fit = streams(model, data), torch.from_numpy(halves(data, 0))
    x, y = (state[fit].double().reshape(-1, wide).numpy() for state in h[:2])
    matrix, mean, write = ridge(x, y - x)
    seen = h[0].double().numpy() + (h[0].double().numpy() - mean) @ matrix + write
    in_sample, intact = (
        held_out_loss(model, state, data, 1, fit.numpy()) for state in (torch.from_numpy(seen).float(), h[1])
    )
    assert report.per_visit(RATIO)[0] > 1.5 * in_sample / intact
    reasons = {row["metric"]: row["reason"] for row in report.content["skipped"]}
    assert reasons == {
        "usefulness_fit": "44 tokens for width 40: the fit is noisy, so that the ratios are too high"
    }


@pytest.mark.parametrize(("count", "length"), [(4, 4), (1, 30), (2, 8)])
def test_too_few_tokens_give_null_with_the_reason(count, length):
    report = evaluate(models.mixing(2), windows(count, length), ["usefulness"])
    assert report.per_visit(RATIO) == report.per_visit(SHARE) == [None, None]
    assert report.scalar("usefulness_area") is None
    assert report.scalar("useful_frac@1.1") is None
    assert "needs more than 8" in report.content["skipped"][0]["reason"]
    assert report.content["timing"]["layer_evals"] == 2


def test_an_identity_is_not_useful():
    model = models.Model([models.Identity(), models.mixing(1).layers[0]])
    report = evaluate(model, windows(), ["usefulness"])
    assert report.per_visit(RATIO)[0] == pytest.approx(1.0, abs=1e-6)
    assert report.per_visit(EXCESS)[0] is None
    assert report.per_visit(SHARE)[0] == 0.0


def test_a_visit_that_adds_a_constant_is_linear():
    vector = torch.linspace(-3, 3, DIM)
    report = evaluate(models.Model([models.Add(vector), models.Mixing()]), windows(), ["usefulness"])
    assert report.per_visit(RATIO)[0] == pytest.approx(1.0, abs=1e-5)


def test_the_penalty_is_relative_to_the_states():
    """States times a thousand, a norm at the end: the same model to look at."""
    torch.manual_seed(3)
    mixing, probe = models.Mixing(), [{"kind": "usefulness", "ridge": 0.5}]

    class Scaled(torch.nn.Module):
        def forward(self, h):
            return 1e3 * mixing(h / 1e3)

    plain = models.Model([mixing])
    large = models.Model([Scaled()])
    large.norm.eps, plain.norm.eps = 0.0, 0.0
    with torch.no_grad():
        large.embed.weight.mul_(1e3)
    found = [evaluate(model, windows(), probe).per_visit(RATIO) for model in (plain, large)]
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_scores_of_given_losses():
    intact, linear, skipped = np.array([2.0]), np.array([2.2, 2.0, 3.0, 1.9]), np.array([2.42, 4.0, 2.5, 1.8])
    np.testing.assert_allclose(loss_ratio(intact, linear, skipped), [1.1, 1.0, 1.5, 0.95])
    np.testing.assert_allclose(log_share(intact, linear, skipped), [0.5, 0.0, 1.0, 0.0])
    np.testing.assert_allclose(excess_over_skip(intact, linear, skipped), [0.2 / 0.42, 0.0, 2.0, np.nan])
    assert np.isnan(log_share(intact * np.nan, linear, skipped)).all()


def test_skips_are_shared_with_other_probes():
    report = evaluate(models.mixing(4), windows(), ["usefulness", "ablation"])
    assert report.content["timing"]["layer_evals"] == 4 + 2 * (4 * 3 // 2)
    alone = evaluate(models.mixing(4), windows(), ["ablation"])
    name = "ablation_delta_nats.skip"
    assert report.per_visit(name) == alone.per_visit(name)


def test_intervals_hold_the_estimate():
    report = evaluate(models.mixing(3), windows(), ["usefulness"])
    for visit in range(3):
        low, high = report.interval(RATIO)[0][visit], report.interval(RATIO)[1][visit]
        assert low < report.per_visit(RATIO)[visit] < high
    sample = report.sample("usefulness_linear_nats.held_out")
    assert (sample.counts.sum(0) > 0).sum() == 8


def test_several_residual_streams_have_no_map():
    report = evaluate(redraw(make_model(depth=2, stream="hyper")), make_ids(8, 20), ["usefulness"])
    assert report.per_visit(RATIO) == [None, None]
    assert "more than one residual" in report.content["skipped"][0]["reason"]


def test_loops_are_fitted_by_visit():
    report = evaluate(redraw(make_model(depth=2, loops=2)), make_ids(8, 20), ["usefulness"])
    assert all(value is not None for value in report.per_visit(RATIO))


def test_halves_belong_to_the_sequences():
    sequences = Sequences.of(windows(9))
    fit = halves(sequences, 0)
    assert fit.sum() == 4
    assert (halves(sequences.rows(torch.arange(8, -1, -1)), 0) == fit[::-1]).all()
    assert (halves(sequences, 1) != fit).any()
    twice = Sequences.of(torch.cat([windows(9), windows(9)]))
    assert (halves(twice, 0) == np.concatenate([fit, fit])).all()


@pytest.mark.parametrize("setting", [{"ridge": 0.0}, {"thresholds": []}, {"treshold": 1.1}])
def test_settings_are_checked(setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        evaluate(models.mixing(1), windows(), [{"kind": "usefulness", **setting}])
