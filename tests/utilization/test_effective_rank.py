"""Ranks of states whose directions are known, and against numpy's singular values."""

import numpy as np
import pytest
import torch

from depthkit.utilization import Sequences, evaluate
from depthkit.utilization.moments import Moments
from depthkit.utilization.probes.effective_rank import ranks_of
from tests.utilization import models
from tests.utilization.models import DIM, VOCAB
from tests.utilization.test_probes import states

NAMES = ("effective_rank", "stable_rank", "participation_ratio")
PARTS = ("all_tokens", "no_token0")


def direct(x):
    """The three ranks of states [N, D], from singular values."""
    s = np.linalg.svd(x - x.mean(0), compute_uv=False)
    p = s / s.sum()
    return np.exp(-(p * np.log(p)).sum()), (s**2).sum() / s[0] ** 2, (s**2).sum() ** 2 / (s**4).sum()


def test_against_singular_values():
    model, windows = models.mixing(3), models.tokens(9, 11)
    report = evaluate(model, windows, ["effective_rank"], batch_tokens=24)
    for visit, h in enumerate(states(model, windows)):
        x = h.double().numpy()
        parts = {"all_tokens": x.reshape(-1, DIM), "no_token0": x[:, 1:].reshape(-1, DIM)}
        for part, tokens in parts.items():
            for name, value in zip(NAMES, direct(tokens), strict=True):
                found = (
                    report.per_visit(f"{name}.{part}")[visit - 1]
                    if visit
                    else report.scalar(f"{name}_embed.{part}")
                )
                assert found == pytest.approx(value, rel=1e-6)
    assert report.scalar("effective_rank_tokens") == 99


def balanced(directions):
    """A model whose embedding is +-e_i for the first directions, and windows with every id equally often."""
    torch.manual_seed(0)
    turn = torch.linalg.qr(torch.randn(DIM, DIM)).Q
    model = models.Model([models.Linear(turn), models.Linear(3 * turn)])
    rows = torch.cat([torch.eye(DIM)[:directions], -torch.eye(DIM)[:directions]])
    model.embed = torch.nn.Embedding.from_pretrained(rows)
    ids = torch.arange(2 * directions).repeat(6).view(directions, 12)
    return model, Sequences(ids, ids % VOCAB, torch.ones_like(ids, dtype=torch.bool))


@pytest.mark.parametrize("directions", [1, 3, 6])
def test_orthogonal_maps_of_equal_directions_fill_exactly_these(directions):
    model, sequences = balanced(directions)
    report = evaluate(model, sequences, ["effective_rank"])
    for name in NAMES:
        assert report.per_visit(f"{name}.all_tokens") == pytest.approx([directions] * 2, rel=1e-6)


def test_a_full_space_has_rank_d():
    drawn = torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    turn, moments = torch.linalg.qr(drawn).Q, Moments()
    moments.add(torch.cat([turn, -turn]) + 100.0)  # the mean is no direction
    assert ranks_of(moments) == pytest.approx((DIM, DIM, DIM), rel=1e-6)


def test_rounding_is_no_direction():
    """A zero eigenvalue comes out as 1e-17 or so, whose root times 300 features would be seen."""
    drawn = torch.randn(300, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plane, moments = torch.linalg.qr(drawn).Q.T, Moments()
    moments.add(torch.cat([plane, -plane]).repeat(9, 1))
    assert ranks_of(moments) == pytest.approx((2, 2, 2), rel=1e-9)


def test_a_massive_first_token_is_a_direction_of_its_own():
    class Sink(models.Mixing):
        def forward(self, h):
            far = torch.full_like(h[:, :1], 1e4)
            return torch.cat([far, h[:, 1:]], 1)

    report = evaluate(models.Model([Sink()]), models.tokens(9), ["effective_rank"])
    plain = evaluate(models.Model([models.Identity()]), models.tokens(9), ["effective_rank"])
    assert report.per_visit("participation_ratio.all_tokens")[0] == pytest.approx(1, abs=1e-3)
    name = "participation_ratio.no_token0"
    assert report.per_visit(name) == pytest.approx(plain.per_visit(name), rel=1e-9)
    assert plain.per_visit(name)[0] > 2


def test_states_that_do_not_vary_have_no_rank():
    model = models.Model([models.Linear(torch.zeros(DIM, DIM))])
    report = evaluate(model, models.tokens(), ["effective_rank"])
    assert report.per_visit("effective_rank.all_tokens") == [None]
    moments = Moments()
    moments.add(torch.full((50, DIM), 1 / 3))
    assert all(np.isnan(rank) for rank in ranks_of(moments))


def test_too_few_tokens_are_said():
    report = evaluate(models.mixing(2), models.tokens(1, DIM), ["effective_rank"])
    (skipped,) = report.content["skipped"]
    assert f"{DIM} tokens for width {DIM}: no rank can exceed {DIM - 1}" in skipped["reason"]
    single = evaluate(models.mixing(1), models.tokens(1, 1), ["effective_rank"])
    assert single.per_visit("stable_rank.all_tokens") == [None]
    assert single.per_visit("stable_rank.no_token0") == [None]


def test_moments_of_parts_add_up():
    x, y = (torch.randn(30, d, generator=torch.Generator().manual_seed(d)) for d in (4, 3))
    first, second = Moments(), Moments()
    first.add(x[:7], y[:7])
    first.add(x[7:11], y[7:11])
    second.add(x[11:], y[11:])
    both = first + second
    wanted = np.cov(np.concatenate([x, y], 1).T, bias=True)
    np.testing.assert_allclose(both.covariance(), wanted[:4, :4], atol=1e-6)
    np.testing.assert_allclose(both.cross(), wanted[:4, 4:], atol=1e-6)
    np.testing.assert_allclose(both.mean_y(), y.mean(0), atol=1e-6)
    assert first.count == 11
