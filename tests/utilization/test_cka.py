"""Debiased CKA against the textbook estimator, and where the peers' similarities go wrong."""

import numpy as np
import pytest
import torch

from depthkit.utilization import Sequences, evaluate
from depthkit.utilization.draws import choose_tokens
from depthkit.utilization.probes import cka
from depthkit.utilization.probes.cka import debiased_cka
from tests.utilization import models
from tests.utilization.test_probes import states


def hsic(k, l):
    """The unbiased estimator of Song et al. (2012), equation 5, as it is written."""
    n = len(k)
    k, l = k - np.diag(np.diag(k)), l - np.diag(np.diag(l))
    one = np.ones(n)
    trace = np.trace(k @ l)
    sums = (one @ k @ one) * (one @ l @ one) / ((n - 1) * (n - 2))
    return (trace + sums - 2 / (n - 2) * (one @ k @ l @ one)) / (n * (n - 3))


def direct(x, y):
    k, l = x @ x.T, y @ y.T
    return hsic(k, l) / np.sqrt(hsic(k, k) * hsic(l, l))


def biased(x, y):
    x, y = x - x.mean(0), y - y.mean(0)
    return np.linalg.norm(y.T @ x) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("count", [4, 5, 17])
def test_against_the_formula(count, monkeypatch):
    x = normal(count, 6) + 3.0
    y = torch.cat([x[:, :3] ** 2, normal(count, 2, seed=1)], 1)
    found = {}
    for block in (1, 2**23):
        monkeypatch.setattr(cka, "BLOCK", block)
        found[block] = debiased_cka([x, y, 5 * x])
    np.testing.assert_allclose(found[1], found[2**23], atol=1e-12)
    if np.isfinite(direct(x.numpy(), y.numpy())):
        assert found[1][0, 1] == pytest.approx(direct(x.numpy(), y.numpy()), rel=1e-8)
    np.testing.assert_allclose(found[1][0, [0, 2]], 1.0)
    np.testing.assert_allclose(found[1], found[1].T)


def test_rotation_scale_and_shift_do_not_matter():
    x = normal(40, 6)
    turn = torch.linalg.qr(normal(6, 6, seed=2)).Q
    found = debiased_cka([x, 1e4 * x @ turn + normal(6, seed=3)])
    assert found[0, 1] == pytest.approx(1.0, abs=1e-9)


def test_unrelated_wide_states_are_not_similar():
    """With more features than tokens the biased estimate is near 1 whatever the states are."""
    pairs = [(normal(20, 300, seed=2 * s), normal(20, 300, seed=2 * s + 1)) for s in range(12)]
    assert np.mean([biased(x.numpy(), y.numpy()) for x, y in pairs]) > 0.9
    assert abs(np.mean([debiased_cka([x, y])[0, 1] for x, y in pairs])) < 0.05


def test_a_common_massive_mean_is_no_similarity():
    """The cosine of mean activations, which passes for a similarity elsewhere, sees nothing but the mean."""
    massive = torch.zeros(8, dtype=torch.float64)
    massive[3] = 1e3
    x, y = normal(200, 8) + massive, normal(200, 8, seed=1) + massive
    assert torch.cosine_similarity(x.mean(0), y.mean(0), dim=0) > 0.999
    assert abs(debiased_cka([x, y])[0, 1]) < 0.1


def test_what_cannot_be_compared_is_nan():
    assert np.isnan(debiased_cka([normal(3, 5), normal(3, 5)])).all()
    found = debiased_cka([normal(9, 5), torch.full((9, 5), 1 / 3)])
    assert found[0, 0] == pytest.approx(1.0)
    assert np.isnan(found[0, 1])
    assert np.isnan(found[1, 1])


def test_of_a_model():
    model, windows = models.mixing(3), models.tokens()
    report = evaluate(model, windows, ["cka"], batch_tokens=24)
    x = [h.double().numpy() for h in states(model, windows)]
    for part, start in {"all_tokens": 0, "no_token0": 1}.items():
        flat = [h[:, start:].reshape(-1, h.shape[-1]) for h in x]
        wanted = [[direct(a, b) for b in flat] for a in flat]
        np.testing.assert_allclose(report.arrays[f"cka.{part}"], wanted, rtol=1e-6)
        series = report.per_visit(f"cka_previous.{part}")
        assert series == pytest.approx([wanted[v][v + 1] for v in range(3)], rel=1e-6)
        assert all(0.3 < value < 0.999 for value in series)
    assert report.scalar("cka_tokens") == 72
    assert not report.content["skipped"]


def test_scaled_states_are_the_same_states():
    report = evaluate(models.Model([models.Scale(3.0), models.Scale(0.1)]), models.tokens(), ["cka"])
    assert report.per_visit("cka_previous.all_tokens") == pytest.approx([1.0, 1.0])


def test_many_tokens_are_subsampled_and_say_so():
    model, windows = models.mixing(2), models.tokens(9)
    probe = [{"kind": "cka", "max_tokens": 31}]
    report = evaluate(model, windows, probe)
    assert report.scalar("cka_tokens") == 31
    assert "31 of 108 tokens" in report.content["skipped"][0]["reason"]
    chosen = choose_tokens(Sequences.of(windows), 31, 0)
    x, y = (h[chosen].double().numpy() for h in states(model, windows)[:2])
    assert report.per_visit("cka_previous.all_tokens")[0] == pytest.approx(direct(x, y), rel=1e-6)


def test_chosen_tokens_belong_to_their_sequence():
    sequences = Sequences.of(models.tokens(9))
    chosen = choose_tokens(sequences, 20, 0)
    assert int(chosen.sum()) == 20
    assert torch.equal(choose_tokens(sequences.rows(torch.arange(8, -1, -1)), 20, 0), chosen.flip(0))
    assert not torch.equal(choose_tokens(sequences, 20, 1), chosen)
    assert torch.equal(choose_tokens(sequences, 108, 0), sequences.mask)
