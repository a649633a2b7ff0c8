"""Blocks of visits and greedy removal against brute force; loops as wholes."""

import numpy as np
import pytest
import torch

from depthkit.utilization import effective_depth as depths
from depthkit.utilization import evaluate
from tests.models import make_model, redraw
from tests.utilization import models
from tests.utilization.byhand import cost

BLOCKS = "block_drop_delta_nats.skip"
NAN = float("nan")


def test_every_block_against_brute_force():
    model, windows = models.mixing(5, seed=3), models.tokens(4, 7)
    report = evaluate(model, windows, [{"kind": "block_drop", "max_block": 3}])
    found = report.arrays[BLOCKS]
    assert found.shape == (5, 3)
    for n in (1, 2, 3):
        for start in range(5):
            kept = [layer for layer in range(5) if not start <= layer < start + n]
            expected = cost(model, windows, kept) if start + n <= 5 else NAN
            assert found[start, n - 1] == pytest.approx(expected, abs=1e-5, nan_ok=True)
        best = int(np.nanargmin(found[:, n - 1]))
        assert report.scalar(f"block_drop_best_start@{n}") == best
        removed = ", ".join(str(layer) for layer in range(best, best + n))
        assert report.scalar(f"block_drop_best_removed@{n}") == removed
        assert report.scalar(f"block_drop_best_delta_nats@{n}") == pytest.approx(found[best, n - 1])
    evals = sum(5 - start - n for n in (1, 2, 3) for start in range(6 - n))
    assert report.scalar("block_drop_layer_evals") == evals
    assert report.content["timing"]["layer_evals"] == 5 + evals


def brute_force(model, windows, budget, most):
    """Greedy removal, one forward a candidate."""
    removed, losses = [], []
    while len(removed) < most and not (losses and losses[-1] > budget):
        left = [layer for layer in model.order if layer not in removed]
        costs = {gone: cost(model, windows, [layer for layer in left if layer != gone]) for gone in left}
        removed.append(min(costs, key=costs.get))
        losses.append(costs[removed[-1]])
    return removed, losses


@pytest.mark.parametrize(("budget", "most"), [(100.0, 9), (0.2, 9), (100.0, 2)])
@pytest.mark.parametrize("seed", [3, 5])
def test_greedy_removal_against_brute_force(budget, most, seed):
    model, windows = models.mixing(5, seed=seed), models.tokens(4, 7)
    probe = {"kind": "greedy_drop", "budget_nats": budget, "max_removed": most}
    report = evaluate(model, windows, ["ablation", probe])
    removed, losses = brute_force(model, windows, budget, min(most, 5))
    assert report.scalar("greedy_drop_order") == ", ".join(map(str, removed))
    curve = report.sample("greedy_drop_delta_nats.after_removal").means()
    np.testing.assert_allclose(curve[: len(losses)], losses, atol=1e-5)
    assert np.isnan(curve[len(losses) :]).all()
    for rank, (visit, loss) in enumerate(zip(removed, losses, strict=True), 1):
        assert report.per_visit("greedy_drop_rank.skip")[visit] == rank
        assert report.per_visit("greedy_drop_delta_nats.skip")[visit] == pytest.approx(loss, abs=1e-5)
    rounds = report.arrays["greedy_drop_delta_nats.rounds"]
    assert rounds.shape == (len(losses), 5)
    assert np.isnan(rounds).sum() == sum(range(len(losses)))
    within = max((k for k, loss in enumerate(losses, 1) if loss <= budget), default=0)
    listed = ", ".join(map(str, sorted(removed[:within])))
    assert report.scalar("greedy_drop_removed") == listed
    stopped = len(losses) < 5 and losses[-1] <= budget
    assert ("droppable" in {entry["metric"] for entry in report.content["skipped"]}) == stopped


def test_greedy_cost_is_what_ran():
    model, calls = models.mixing(4), []
    probe = {"kind": "greedy_drop", "budget_nats": 100.0}
    progress = []
    for layer in model.layers:
        layer.register_forward_hook(lambda *_: calls.append(1))
    report = evaluate(model, models.tokens(), [probe], progress=lambda *done: progress.append(done))
    evals = report.scalar("greedy_drop_layer_evals")
    assert report.content["timing"]["layer_evals"] == 4 + evals
    assert progress[-1] == pytest.approx((4 + evals, 4 + evals))


def test_layers_that_do_nothing_go_first_and_cost_nothing():
    torch.manual_seed(15)  # the other two layers help
    layers = [models.Mixing(), models.Identity(), models.Mixing(), models.Identity()]
    report = evaluate(models.Model(layers, seed=15), models.tokens(), ["greedy_drop"])
    assert report.scalar("greedy_drop_order") == "1, 3, 2"
    assert report.scalar("greedy_drop_removed") == "1, 3"
    assert report.scalar("droppable@0.01") == report.scalar("droppable@0.05") == 2
    assert report.per_visit("greedy_drop_delta_nats.skip")[1:4:2] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("curve", "nats", "expected"),
    [
        ([0.0, 0.02, 0.3, NAN], 0.05, 2.0),
        ([0.0, 0.02, 0.3, NAN], 0.01, 1.0),
        ([0.0, 0.02, 0.3, NAN], 0.5, NAN),
        ([0.2, NAN, NAN, NAN], 0.05, 0.0),
        ([0.0, 0.02, NAN, NAN], 0.05, NAN),
        ([0.0, 0.02, NAN, NAN], 0.01, 1.0),
        ([-0.1, 0.02, -0.1, 0.0], 0.01, 4.0),
    ],
)
def test_droppable(curve, nats, expected):
    assert depths.droppable(nats)(np.array(curve)) == pytest.approx(expected, nan_ok=True)
    assert depths.droppable(nats)(np.array([curve, curve])).shape == (2,)


def test_droppable_is_in_the_family():
    model, windows = models.mixing(5, seed=5), models.tokens(4, 7)
    report = evaluate(model, windows, [{"kind": "greedy_drop", "budget_nats": 100.0}])
    losses = brute_force(model, windows, 100.0, 5)[1]
    for nats in (0.01, 0.05):
        most = max((k for k, loss in enumerate(losses, 1) if loss <= nats), default=0)
        assert report.scalar(f"droppable@{nats}") == most


LOOPS = "loop_ablation_delta_nats"


def test_loops_as_wholes():
    model, windows = models.mixing(2, seed=4, order=[0, 1, 0, 1, 0, 1]), models.tokens(4, 7)
    report = evaluate(model, windows, ["loop_ablation"])
    without_layer = [cost(model, windows, [1, 1, 1]), cost(model, windows, [0, 0, 0])]
    assert report.per_visit(f"{LOOPS}.all_visits_of_layer") == pytest.approx(without_layer * 3, abs=1e-5)
    one_less = cost(model, windows, [0, 1, 0, 1])
    assert report.per_visit(f"{LOOPS}.whole_loop") == pytest.approx([one_less] * 6, abs=1e-5)


def test_the_last_loop_of_an_own_model():
    segment = {"name": "core", "pattern": ["dense"], "repeat": 2}
    ends = [{"name": name, "pattern": ["dense"]} for name in ("prelude", "coda")]
    deep, shallow = (
        redraw(make_model(segments=[ends[0], segment | {"loops": loops}, ends[1]])) for loops in (3, 2)
    )
    windows = models.tokens(4, 7)
    report = evaluate(deep, windows, ["loop_ablation"])
    before, after = (
        evaluate(m, windows, ["stream"]).content["baseline"]["loss_nats"] for m in (deep, shallow)
    )
    found = report.per_visit(f"{LOOPS}.whole_loop")
    assert found[5:7] == pytest.approx([after - before] * 2, abs=1e-6)
    assert found[0] is None is found[7]


def test_plain_models_have_no_loops():
    report = evaluate(models.mixing(3), models.tokens(), ["loop_ablation"])
    assert report.per_visit(f"{LOOPS}.whole_loop") == [None] * 3
    assert report.content["skipped"][0]["reason"] == "no layer is visited more than once"
