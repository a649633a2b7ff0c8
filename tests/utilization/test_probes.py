"""Every probe against a model whose answer is known, or against an independent computation."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from depthkit.utilization import evaluate
from depthkit.utilization.probes.angular import angle_over_pi
from depthkit.utilization.probes.stream import growth
from tests.utilization import models

ABLATION = "ablation_delta_nats.skip"


def states(model, windows):
    """h_0..h_L of a model, computed without hooks. [L + 1] of [N, T, D]."""
    with torch.no_grad():
        h = [model.embed(windows[:, :-1])]
        for index in model.order:
            h.append(model.visit(model.layers[index], h[-1]))
    return h


def loss(model, h, windows):
    with torch.no_grad():
        return F.cross_entropy(model.read_out(h).flatten(0, 1), windows[:, 1:].flatten()).item()


@pytest.fixture(scope="module")
def with_identity():
    torch.manual_seed(0)
    model = models.Model([models.Mixing(), models.Identity(), models.Mixing()])
    return evaluate(model, models.tokens())


class TestIdentityLayer:
    @pytest.mark.parametrize(
        "metric",
        [
            "relative_contribution.mean",
            "block_influence.mean",
            "angular_distance.all_tokens",
            "angular_distance.last_token",
            ABLATION,
            "ablation_delta_accuracy.skip",
            "later_effect.ratio_of_means",
            "later_effect.max_all_tokens",
        ],
    )
    def test_is_exactly_zero(self, with_identity, metric):
        values = with_identity.per_visit(metric)
        assert values[1] == 0.0
        assert values[0] != 0.0

    def test_direction_of_nothing_is_undefined(self, with_identity):
        assert with_identity.per_visit("update_cosine.mean")[1] is None
        assert with_identity.per_visit("update_cosine.mean")[0] is not None

    def test_effect_on_it_is_undefined_not_infinite(self, with_identity):
        assert np.isnan(with_identity.arrays["causal_effect.ratio_of_means"][0, 1])
        assert with_identity.arrays["causal_effect.ratio_of_means"][0, 2] > 0


class TestScale:
    """h -> c h: the write is (c - 1) h."""

    @pytest.mark.parametrize(("factor", "size", "cosine"), [(2.0, 1.0, 1.0), (0.25, 0.75, -1.0)])
    def test_contribution(self, factor, size, cosine):
        report = evaluate(models.Model([models.Scale(factor)]), models.tokens())
        assert report.per_visit("relative_contribution.mean") == [pytest.approx(size)]
        assert report.per_visit("update_cosine.mean") == [pytest.approx(cosine, abs=1e-6)]

    def test_norms_scale_and_angles_stay(self):
        report = evaluate(models.Model([models.Scale(3.0), models.Scale(3.0)]), models.tokens())
        norms, variances = report.per_visit("norm.mean"), report.per_visit("variance.mean")
        assert norms[1] / norms[0] == pytest.approx(3.0)
        assert variances[1] / variances[0] == pytest.approx(9.0)
        assert norms[0] / report.scalar("norm_embed.mean") == pytest.approx(3.0)
        assert report.per_visit("block_influence.mean") == [pytest.approx(0, abs=1e-12)] * 2
        assert report.per_visit("angular_distance.all_tokens") == [pytest.approx(0, abs=1e-6)] * 2


@pytest.fixture(scope="module")
def rotating():
    turn = torch.block_diag(*[torch.tensor([[0.0, -1.0], [1.0, 0.0]])] * (models.DIM // 2))
    return evaluate(models.Model([models.Linear(turn) for _ in range(4)]), models.tokens())


class TestRotation:
    """A quarter turn in every plane: angles add up as they must."""

    def test_one_visit(self, rotating):
        assert rotating.per_visit("block_influence.mean") == pytest.approx([1.0] * 4)
        assert rotating.per_visit("angular_distance.last_token") == pytest.approx([0.5] * 4)

    @pytest.mark.parametrize("name", ["last_token", "all_tokens"])
    def test_blocks_of_visits(self, rotating, name):
        nan = math.nan
        expected = [[0.5, 1.0, 0.5, 0.0], [0.5, 1.0, 0.5, nan], [0.5, 1.0, nan, nan], [0.5, nan, nan, nan]]
        found = rotating.arrays[f"angular_distance.{name}"]
        np.testing.assert_allclose(found, expected, atol=1e-6)

    def test_orthogonal_maps_keep_norms(self, rotating):
        assert rotating.per_visit("norm.mean") == pytest.approx([rotating.scalar("norm_embed.mean")] * 4)


class TestStream:
    def test_against_numpy(self):
        model, windows = models.mixing(3), models.tokens()
        report = evaluate(model, windows, ["stream"])
        for visit, h in enumerate(states(model, windows)[1:]):
            x = h.double().numpy()
            assert report.per_visit("variance.mean")[visit] == pytest.approx(x.var(-1).mean(), rel=1e-5)
            assert report.per_visit("rms.mean")[visit] == pytest.approx(
                np.sqrt((x**2).mean(-1)).mean(), rel=1e-5
            )
            without = np.linalg.norm(x, axis=-1)[:, 1:].mean()
            assert report.per_visit("norm.mean_no_token0")[visit] == pytest.approx(without, rel=1e-5)

    def test_a_massive_first_token_is_seen_in_one_name_only(self):
        class Sink(models.Mixing):
            def forward(self, h):
                return torch.cat([h[:, :1] * 100, h[:, 1:]], 1)

        plain = evaluate(models.Model([models.Identity()]), models.tokens(), ["stream"])
        sink = evaluate(models.Model([Sink()]), models.tokens(), ["stream"])
        assert sink.per_visit("norm.mean_no_token0") == plain.per_visit("norm.mean_no_token0")
        assert sink.per_visit("norm.mean")[0] > 5 * plain.per_visit("norm.mean")[0]

    def test_power_law(self):
        found = growth([3.0 * depth**1.3 for depth in range(1, 20)])
        assert found["power_exponent"] == pytest.approx(1.3)
        assert found["power_r2"] == pytest.approx(1.0)
        assert found["better_fit"] == "power"

    def test_exponential(self):
        found = growth([0.1 * math.exp(0.2 * depth) for depth in range(1, 20)])
        assert found["exponential_rate"] == pytest.approx(0.2)
        assert found["better_fit"] == "exponential"

    def test_fit_starts_where_asked(self):
        values = [1e-6, *(float(depth) for depth in range(2, 9))]
        assert growth(values, fit_from=2)["power_exponent"] == pytest.approx(1.0)
        assert growth(values, fit_from=1)["power_exponent"] > 2

    @pytest.mark.parametrize("values", [[1.0, 2.0, 3.0], [2.0] * 6, [0.0] * 6, [1.0, 2.0, None, 4.0, 5.0]])
    def test_no_line_no_number(self, values):
        assert set(growth(values).values()) == {None}


def test_near_identical_states_have_an_angle():
    """An unclamped arccos gives NaN for a quarter of such pairs."""
    u = F.normalize(torch.randn(1000, 64, generator=torch.Generator().manual_seed(0)), dim=-1)
    angles = angle_over_pi(u, F.normalize(u * (1 + 1e-7), dim=-1))
    assert torch.isnan(torch.arccos((u * u).sum(-1))).any()
    assert torch.isfinite(angles).all()
    assert float(angles.max()) < 1e-6


class TestAblation:
    def test_against_a_naive_loop(self):
        model, windows = models.mixing(4, seed=3), models.tokens(5, 9)
        report = evaluate(model, windows, ["ablation"])
        intact = loss(model, states(model, windows)[-1], windows)
        assert report.content["baseline"]["loss_nats"] == pytest.approx(intact, rel=1e-6)
        for visit in range(4):
            model.order = [index for index in range(4) if index != visit]
            cost = loss(model, states(model, windows)[-1], windows) - intact
            assert report.per_visit(ABLATION)[visit] == pytest.approx(cost, abs=1e-6)

    def test_two_equal_neighbours_cost_the_same(self):
        torch.manual_seed(1)
        twin = models.Mixing()
        report = evaluate(
            models.Model([models.Mixing(), twin, twin, models.Mixing()], seed=1), models.tokens()
        )
        costs = report.per_visit(ABLATION)
        assert costs[1] == costs[2] != costs[0]

    def test_sequence_samples_are_kept(self):
        report = evaluate(models.mixing(3), models.tokens(), ["ablation"])
        sample = report.sample(ABLATION)
        assert sample.sums.shape == sample.counts.shape == (3, 6)
        assert (sample.sums.sum(1) / sample.counts.sum(1)).tolist() == pytest.approx(
            report.per_visit(ABLATION)
        )


class TestCausal:
    def test_against_a_naive_loop(self):
        model, windows = models.mixing(4, seed=2), models.tokens()
        report = evaluate(model, windows, ["causal"])
        intact = states(model, windows)
        for skipped in range(4):
            h = intact[skipped]
            for later in range(skipped + 1, 4):
                after = model.layers[later](h).detach()
                write = intact[later + 1] - intact[later]
                change, size = (after - h - write).norm(dim=-1), write.norm(dim=-1)
                expected = {
                    "ratio_of_means": change.mean() / size.mean(),
                    "max_all_tokens": (change / size).max(),
                }
                for name, value in expected.items():
                    found = report.arrays[f"causal_effect.{name}"][skipped, later]
                    assert found == pytest.approx(float(value), rel=1e-4)
                h = after

    def test_the_last_visit_has_no_later_one(self):
        report = evaluate(models.mixing(3), models.tokens(), ["causal"])
        values = report.per_visit("later_effect.ratio_of_means")
        assert values[2] is None
        assert values[0] == pytest.approx(np.nanmean(report.arrays["causal_effect.ratio_of_means"][0]))
        assert np.isnan(report.arrays["causal_effect.ratio_of_means"][np.tril_indices(3)]).all()


@pytest.fixture(scope="module")
def lens_found():
    model, windows = models.mixing(3, seed=4), models.tokens()
    with torch.no_grad():
        p = [model.read_out(h).double().softmax(-1).numpy() for h in states(model, windows)]
    return evaluate(model, windows, ["lens"]), p, windows[:, 1:].numpy()


class TestLens:
    def test_divergences_are_named_the_right_way_round(self, lens_found):
        report, p, _ = lens_found
        for visit in range(3):
            forward = stats.entropy(p[-1], p[visit + 1], axis=-1).mean()
            backward = stats.entropy(p[visit + 1], p[-1], axis=-1).mean()
            assert report.per_visit("lens_kl_final_to_exit_nats.mean")[visit] == pytest.approx(
                forward, abs=1e-5
            )
            assert report.per_visit("lens_kl_exit_to_final_nats.mean")[visit] == pytest.approx(
                backward, abs=1e-5
            )
        assert forward == backward == 0
        first, second = (
            report.per_visit(f"lens_kl_{way}_nats.mean")[0] for way in ("final_to_exit", "exit_to_final")
        )
        assert abs(first - second) > 1e-3

    def test_agreement_and_overlap(self, lens_found):
        report, p, _ = lens_found
        for visit in range(3):
            same = (p[visit + 1].argmax(-1) == p[-1].argmax(-1)).mean()
            early, final = (np.argsort(q, -1)[..., -5:].reshape(-1, 5) for q in (p[visit + 1], p[-1]))
            overlap = np.mean([len(set(a) & set(b)) / 5 for a, b in zip(early, final, strict=True)])
            assert report.per_visit("lens_top1_agreement.mean")[visit] == pytest.approx(same)
            assert report.per_visit("lens_top5_overlap.mean")[visit] == pytest.approx(overlap)

    def test_exits(self, lens_found):
        report, p, targets = lens_found
        for visit in range(3):
            nats = -np.log(np.take_along_axis(p[visit + 1], targets[..., None], -1)).mean()
            assert report.per_visit("exit_loss_nats.mean")[visit] == pytest.approx(nats, rel=1e-5)
        assert report.per_visit("exit_loss_nats.mean")[2] == pytest.approx(
            report.content["baseline"]["loss_nats"]
        )
        assert report.per_visit("exit_accuracy.mean")[2] == pytest.approx(
            report.content["baseline"]["tok_acc"]
        )

    def test_prediction_depth(self, lens_found):
        report, p, _ = lens_found
        top = np.stack([q.argmax(-1) for q in p])
        depths = [
            next(d for d in range(4) if (top[d:, n, t] == top[-1, n, t]).all())
            for n in range(top.shape[1])
            for t in range(top.shape[2])
        ]
        assert report.scalar("prediction_depth.mean") == pytest.approx(np.mean(depths))

    def test_large_vocabularies_are_subsampled_and_say_so(self):
        probe = {"kind": "lens", "max_logits": 13 * 6 * 4}
        report = evaluate(models.mixing(2), models.tokens(), [probe])
        assert report.scalar("lens_positions") == 6 * 4
        assert report.content["skipped"][0]["metric"] == "lens_positions"
        assert "24 of 72" in report.content["skipped"][0]["reason"]

    def test_forbidden_tokens_do_not_make_nan(self):
        class Forbidding(models.Model):
            def read_out(self, h):
                mask = torch.zeros(models.VOCAB)
                mask[7] = -math.inf
                return super().read_out(h) + mask

        torch.manual_seed(0)
        windows = models.tokens()
        windows[windows == 7] = 1
        model = Forbidding([models.Mixing(), models.Mixing()])
        report = evaluate(model, windows, ["lens"])
        assert all(v is not None for v in report.per_visit("lens_kl_final_to_exit_nats.mean"))


@pytest.mark.parametrize("depth", [1, 2])
def test_shallow_models_give_nulls_not_errors(depth, tmp_path):
    report = evaluate(models.mixing(depth), models.tokens(1, 1))
    assert report.per_visit("later_effect.ratio_of_means")[-1] is None
    assert report.per_visit("variance.mean_no_token0") == [None] * depth
    assert report.scalar("variance_power_exponent.mean") is None
    assert report.interval(ABLATION) is None
    assert report.content["baseline"]["se"] is None
    assert (report.scalar("depth_score_relative.ablation") is None) == (
        depth == 1 or report.scalar("depth_score.ablation") is None
    )
    report.save(tmp_path, plots=False)
