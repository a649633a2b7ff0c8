"""Mean and resample ablation against forwards by hand."""

import pytest
import torch

from depthkit.utilization import Sequences, evaluate
from depthkit.utilization.probes.resample_ablation import givers
from tests.utilization import models
from tests.utilization.byhand import loss, onward, states

MEAN, RESAMPLED = "ablation_delta_nats.mean_write", "ablation_delta_nats.resampled_write"


@pytest.mark.parametrize("apart", [False, True])
def test_mean_write(apart):
    model, windows = models.mixing(3, seed=2), models.tokens(5, 7)
    probe = {"kind": "mean_ablation", "token0_apart": apart}
    name = MEAN + ("_token0_apart" if apart else "")
    found = evaluate(model, windows, [probe]).per_visit(name)
    h = states(model, windows[:, :-1])
    for visit in range(3):
        write = h[visit + 1] - h[visit]
        mean = write.mean((0, 1)).expand(7, -1).clone()
        if apart:
            mean[0], mean[1:] = write[:, 0].mean(0), write[:, 1:].mean((0, 1))
        altered = onward(model, h[visit] + mean, visit + 1)
        cost = loss(model, altered, windows) - loss(model, h[-1], windows)
        assert found[visit] == pytest.approx(cost, abs=1e-5)


def test_a_write_that_is_the_same_everywhere_costs_nothing():
    """Skipping it does."""
    torch.manual_seed(0)
    model = models.Model([models.Mixing(), models.Add(torch.randn(models.DIM)), models.Mixing()])
    report = evaluate(model, models.tokens(), ["ablation", "mean_ablation", "resample_ablation"])
    assert abs(report.per_visit("ablation_delta_nats.skip")[1]) > 0.01
    assert report.per_visit(MEAN)[1] == pytest.approx(0.0, abs=1e-6)
    assert report.per_visit(RESAMPLED)[1] == pytest.approx(0.0, abs=1e-6)


def test_resampled_write():
    model, windows = models.mixing(3, seed=2), models.tokens(5, 7)
    found = evaluate(model, windows, ["resample_ablation"], seed=3).per_visit(RESAMPLED)
    donor = givers(torch.ones(5, 7, dtype=torch.bool), 3)[:, 0]
    assert sorted(donor.tolist()) == list(range(5))
    assert not bool((donor == torch.arange(5)).any())
    h = states(model, windows[:, :-1])
    for visit in range(3):
        write = (h[visit + 1] - h[visit])[donor]
        cost = loss(model, onward(model, h[visit] + write, visit + 1), windows) - loss(model, h[-1], windows)
        assert found[visit] == pytest.approx(cost, abs=1e-5)
    assert found != evaluate(model, windows, ["resample_ablation"], seed=4).per_visit(RESAMPLED)


def test_padding_gives_nothing():
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[0, 3:] = mask[1, 5:] = mask[2, 5:] = False
    for seed in range(5):
        found = givers(mask, seed)
        for row in range(4):
            for position in range(6):
                giver = int(found[row, position])
                others = [r for r in range(4) if r != row and mask[r, position]]
                assert giver in others if others else giver == row


def test_no_giver_no_number():
    report = evaluate(models.mixing(2), models.tokens(1), ["resample_ablation"])
    assert report.per_visit(RESAMPLED) == [None, None]
    assert report.content["skipped"] == [{"metric": RESAMPLED, "reason": "needs two sequences"}]


def test_memory_has_a_limit():
    size = 2 * 6 * 12 * models.DIM * 4
    for limit in (size, size - 1):
        probe = {"kind": "resample_ablation", "max_bytes": limit}
        report = evaluate(models.mixing(2), models.tokens(), [probe], batch_tokens=24)
        assert (None in report.per_visit(RESAMPLED)) == (limit < size)
    assert f"{size} bytes, max_bytes allows {size - 1}" in report.content["skipped"][0]["reason"]


def test_only_real_tokens_have_a_mean():
    model, windows = models.mixing(2), models.tokens(4, 6)
    ids, targets = windows[:, :-1].clone(), windows[:, 1:].clone()
    targets[0, 3:] = -100
    report = evaluate(model, Sequences.of_targets(ids, targets), ["mean_ablation"])
    h = states(model, ids)
    real = torch.ones(4, 6, dtype=torch.bool)
    real[0, 3:] = False
    mean = (h[2] - h[1])[real].mean(0)
    with torch.no_grad():
        nats = [-model.read_out(s).log_softmax(-1) for s in (h[1] + mean, h[2])]
    altered, intact = (
        torch.gather(n, 2, targets.clamp(min=0)[..., None])[..., 0][real].mean().item() for n in nats
    )
    assert report.per_visit(MEAN)[1] == pytest.approx(altered - intact, abs=1e-6)
