"""The effective depth family on effects whose answer is known."""

import math

import numpy as np
import pytest

from depthkit.utilization import effective_depth as depths
from depthkit.utilization import evaluate
from depthkit.utilization.result import Result
from depthkit.utilization.statistics import Sample
from tests.utilization import models
from tests.utilization.byhand import ALTERING


@pytest.mark.parametrize(
    ("effects", "score", "relative", "entropy", "participation"),
    [
        ([1.0, 1.0, 1.0, 1.0, 1.0], 2.0, 0.5, 5.0, 5.0),
        ([0.0, 0.0, 3.0, 0.0, 0.0], 2.0, 0.5, 1.0, 1.0),
        ([1.0, 0.0, 0.0, 0.0, 1.0], 2.0, 0.5, 2.0, 2.0),
        (
            [-9.0, 0.0, 0.0, 1.0, 3.0],
            3.75,
            0.9375,
            math.exp(-0.25 * math.log(0.25) - 0.75 * math.log(0.75)),
            1.6,
        ),
    ],
)
def test_summaries(effects, score, relative, entropy, participation):
    e = np.array(effects)
    assert depths.depth_score(e) == pytest.approx(score)
    assert depths.depth_score_relative(e) == pytest.approx(relative)
    assert depths.n_eff_entropy(e) == pytest.approx(entropy)
    assert depths.n_eff_pr(e) == pytest.approx(participation)


@pytest.mark.parametrize("statistic", depths.SHAPE.values())
def test_no_effect_is_undefined(statistic):
    assert np.isnan(statistic(np.array([0.0, -1.0, 0.0])))
    assert statistic(np.array([[1.0, 2.0], [0.0, 0.0]])).shape == (2,)


def test_one_visit_has_no_relative_depth():
    assert np.isnan(depths.depth_score_relative(np.array([1.0])))
    assert depths.depth_score(np.array([1.0])) == 0.0


def test_ablate_frac():
    deltas = np.array([0.5, 0.02, 0.01, -0.3])
    assert depths.ablate_frac(0.01)(deltas) == 0.5
    assert depths.ablate_frac(0.05)(deltas) == 0.25


def test_lens_depth_wants_to_stay_settled():
    assert depths.lens_depth(np.array([3.0, 0.05, 0.2, 0.05, 0.0])) == 0.75
    assert depths.lens_depth(np.array([0.0, 0.0, 0.0])) == 0.0
    assert depths.lens_depth(np.array([3.0, 2.0, 0.0])) == 1.0


def test_exit_depth():
    assert depths.exit_depth(np.array([0.0, 0.3, 0.48, 0.2, 0.5])) == 2
    assert np.isnan(depths.exit_depth(np.array([0.1, 0.0])))


def test_family_counts_negatives_and_has_intervals():
    rng = np.random.default_rng(0)
    sums = np.array([[8.0], [-2.0], [4.0]]) + rng.normal(0, 0.1, (3, 30))
    result = Result(samples={depths.ABLATION: Sample(sums, np.full((3, 30), 10.0))})
    found = depths.family(result, seed=0)
    assert found["ablation_negative_count"].value == 1
    score = found["depth_score.ablation"]
    assert score.low < score.value < score.high
    assert score.value == pytest.approx(2 / 3, abs=0.02)
    assert "lens_depth@0.1" not in found


def test_all_names_are_reported():
    report = evaluate(models.mixing(4), models.tokens(), ["ablation", "lens", "causal", *ALTERING])
    later = {f"{name}.{effect}" for name in depths.SHAPE for effect in ("causal", "future", "local")}
    names = {*depths.SAMPLED, *later, "ablation_negative_count"}
    assert names <= set(report.content["scalars"])
    costs = report.per_visit(depths.ABLATION)
    assert report.scalar("ablate_frac@0.05") == np.mean([cost > 0.05 for cost in costs])
    assert report.scalar("ablation_negative_count") == sum(cost < 0 for cost in costs)
