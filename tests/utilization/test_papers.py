"""The papers' own aggregations, against their formulas written out with loops."""

import math

import numpy as np
import pytest

from depthkit.utilization import evaluate
from depthkit.utilization.options import PRESETS, SAMPLES, EvalOptions, preset_names, probe_configs
from depthkit.utilization.paper import Found
from depthkit.utilization.papers import PAPERS
from depthkit.utilization.result import Matrix, Result, Scalar, Series
from tests.models import make_ids, make_model, model_dict, redraw
from tests.utilization import models

DEPTH = 5


def aggregate(paper, loss=2.0, width=8, **found):
    """A paper's numbers from given metrics, matrices and scalars (by the kind of their value)."""
    result = Result()
    for name, value in found.items():
        name = name.replace("__", ".")
        if isinstance(value, np.ndarray):
            result.matrices[name] = Matrix(value, "", "", "", "")
        elif isinstance(value, list):
            result.per_visit[name] = Series(value, "", "")
        else:
            result.scalars[name] = Scalar(value, "")
    config = PAPERS.get(paper).Config()
    scalars = config.component(config).aggregate(Found(result, loss, width, DEPTH))
    return {name: scalar.value for name, scalar in scalars.items()}


@pytest.fixture(scope="module")
def effects():
    """E(s, l) for l > s."""
    values = np.random.default_rng(0).uniform(0.1, 0.9, (DEPTH, DEPTH))
    values[np.tril_indices(DEPTH)] = np.nan
    return values


def test_csordas_depth_score(effects):
    found = aggregate("csordas", future_effect__max_all_tokens=effects, causal_effect__ratio_of_means=effects)
    weights = []
    for s in range(DEPTH):
        weights.append(sum(effects[s, later] for later in range(s + 1, DEPTH)) / max(DEPTH - 1 - s, 1))
    score = sum(s * weight for s, weight in enumerate(weights)) / sum(weights)
    assert found["csordas_depth_score_future.max"] == pytest.approx(score)
    assert found["csordas_depth_score_later.mean"] == pytest.approx(score)
    assert found["csordas_depth_score_local.mean"] is None


def test_csordas_output_score():
    found = aggregate("csordas", output_effect_l2__mean=[0.1, 0.0, 0.3, 0.2, 0.4])
    assert found["csordas_depth_score_output.mean"] == pytest.approx((0.6 + 0.6 + 1.6) / 1.0)


def test_causal_scores(effects):
    total = 0.0
    for s in range(DEPTH - 1):
        later = [effects[s, other] for other in range(s + 1, DEPTH)]
        total += sum(later) / len(later)
    mine = aggregate("sparsity", causal_effect__ratio_of_means=effects)
    theirs = aggregate("depthbench", causal_effect__ratio_of_means=effects)
    assert mine["sparsity_causal_score"] == pytest.approx(total / DEPTH)
    assert theirs["depthbench_causal_score"] == pytest.approx(total / DEPTH / math.sqrt(DEPTH))
    assert mine["sparsity_causal_score.over_sqrt_depth"] == theirs["depthbench_causal_score"]


def test_usefulness_is_a_share_of_ratios():
    ratios = [1.05, 1.2, 1.101, 1.1, 3.0]
    for paper in ("sparsity", "depthbench"):
        assert aggregate(paper, usefulness_loss_ratio__held_out=ratios)[f"{paper}_usefulness"] == 0.6
    found = aggregate("sparsity", usefulness_loss_ratio__held_out=ratios)
    assert found["sparsity_effective_depth"] == 3.0
    assert found["sparsity_usefulness_ratio.mean"] == pytest.approx(sum(ratios) / 5)


def test_late_pairs(effects):
    swaps = np.where(np.isnan(effects), np.nan, effects / 3)
    found = aggregate("depthbench", causal_effect__ratio_of_means=effects, swap_relative__pairs=swaps)
    late = [effects[s, other] for s in range(2, DEPTH) for other in range(s + 1, DEPTH)]
    assert found["depthbench_late_pairs_causal"] == sum(e > 0.45 for e in late) / 3
    assert found["depthbench_late_pairs_swap"] == sum(e / 3 > 0.15 for e in late) / 3


def test_experts_of_some_layers():
    loads = np.full((DEPTH, 4), np.nan)
    loads[1], loads[3], loads[4] = [0.25] * 4, [0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]
    found = aggregate(
        "sparsity",
        loss=2.0,
        expert_load__share=loads,
        expert_load_cv__pooled=[None, 0.0, None, 1.0, 1.5],
        **{"ablation_delta_nats__skip_ffn": [9.0, 1.0, 9.0, 30.0, -2.0]},
    )
    assert found["sparsity_load_balance.mean"] == pytest.approx((1.0 + 0.0 + 0.0) / 3)
    assert found["sparsity_expert_importance.mean"] == pytest.approx((0.05 + 1.0 - 0.1) / 3)
    cosines = [math.sqrt(0.5), math.sqrt(0.5), 0.0]
    assert found["sparsity_expert_diversity"] == pytest.approx(sum(1 - c for c in cosines) / 3)
    assert "sparsity_expert_diversity" not in aggregate("sparsity")


def test_identity_preservation():
    found = aggregate("sparsity", mean_jacobian_diagonal__mean=[0.9, 0.4, 0.51, 1.2, 0.5])
    assert found["sparsity_identity_preservation"] == 0.6


def test_lns():
    costs, accuracy = [0.5, 0.0, -0.1, 0.2, 1.0], [-0.2, 0.0, 0.1, -0.1, -0.3]
    angles = np.full((DEPTH, DEPTH), np.nan)
    angles[:, 0] = [0.5, 0.1, 0.3, 0.2, 0.4]
    angles[:4, 1] = [0.5, 0.4, 0.1, 0.2]
    found = aggregate(
        "lns",
        ablation_delta_nats__skip=costs,
        ablation_delta_accuracy__skip=accuracy,
        angular_distance__last_token=angles,
        variance__mean=[1.0, 2.0, 3.0, 4.0, 7.0],
        block_influence__mean=[0.9, 0.1, 0.3, 0.2, 0.5],
    )
    rises = [math.exp(2.0 + cost) - math.exp(2.0) for cost in costs]
    assert found["lns_perplexity_rise.mean"] == pytest.approx(sum(rises) / 5)
    assert found["lns_perplexity_rise.median"] == pytest.approx(rises[3])
    assert found["lns_performance_drop.mean"] == pytest.approx(-0.1)
    assert found["lns_variance.last"] == pytest.approx(7.0 * 8 / 7)
    assert found["lns_variance_growth"] == pytest.approx(7.0)
    assert (found["lns_best_start@1"], found["lns_best_start@2"]) == (1, 2)
    assert found["lns_angular_distance@2.mean"] == pytest.approx(0.3)
    assert found["lns_influence_order"] == "1, 3, 2, 4, 0"
    assert "lns_best_start@8" not in found


@pytest.mark.parametrize("paper", PAPERS.names())
def test_nothing_measured_is_nothing_said(paper):
    assert {value for name, value in aggregate(paper).items() if name != "lns_perplexity"} == {None}


@pytest.mark.parametrize("paper", PAPERS.names())
def test_every_number_of_a_paper_in_a_report(paper):
    dense = model_dict()["blocks"]["dense"] | {"ffn": {"kind": "moe", "num_experts": 4, "top_k": 2}}
    report = evaluate(redraw(make_model(depth=3, blocks={"dense": dense})), make_ids(8, 12), f"paper:{paper}")
    numbers = {k: s["value"] for k, s in report.content["scalars"].items() if k.startswith(f"{paper}_")}
    assert numbers
    assert [name for name, value in numbers.items() if value is None] == []
    left_out = [item["metric"] for item in report.content["skipped"]]
    assert all(name in left_out for name in PAPERS.get(paper).left_out)
    owners = {report.content["scalars"][name]["probe"] for name in numbers}
    assert owners == {PAPERS.get(paper).source}


class TestPresets:
    @pytest.mark.parametrize("preset", preset_names())
    def test_every_preset_validates(self, preset):
        assert probe_configs(EvalOptions(preset=preset).asked)
        assert preset in PRESETS or preset.startswith("paper:")

    def test_quick_is_one_shared_sweep(self):
        report = evaluate(models.mixing(5), models.tokens(), ["ablation", "causal", "lens"])
        assert report.content["timing"]["layer_evals"] == 5 * 6 // 2
        assert evaluate(models.mixing(5), models.tokens(), "quick").content["timing"]["layer_evals"] == 15

    def test_samples(self):
        quick, standard, paper = (EvalOptions(preset=name) for name in ("quick", "standard", "paper:lns"))
        assert (quick.sequences, quick.length(None)) == SAMPLES["quick"] == (16, 64)
        assert (standard.sequences, standard.length(256)) == (paper.sequences, paper.length(256)) == (32, 128)
        assert EvalOptions(preset="standard", sequences=5, sequence_length=700).length(300) == 700
        assert quick.length(48) == 48

    def test_the_help_names_every_preset(self):
        description = EvalOptions.model_fields["preset"].description
        assert [name for name in preset_names() if name not in description] == []
