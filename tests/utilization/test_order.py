"""Swaps and other orders of the visits against forwards by hand."""

import numpy as np
import pytest
import torch

from depthkit.utilization import evaluate
from tests.utilization import models
from tests.utilization.byhand import cost, end, loss, states, twins


def swapped(depth, i, j):
    order = list(range(depth))
    order[i], order[j] = order[j], order[i]
    return order


def test_every_pair_against_a_forward_by_hand():
    model, windows = models.mixing(4, seed=3), models.tokens(4, 7)
    report = evaluate(model, windows, ["swap"])
    intact = loss(model, end(model, windows[:, :-1], model.order), windows)
    signed, relative = (report.arrays[f"swap_{name}.pairs"] for name in ("delta_nats", "relative"))
    for i in range(4):
        for j in range(4):
            expected = cost(model, windows, swapped(4, i, j)) if i < j else float("nan")
            assert signed[i, j] == pytest.approx(expected, abs=1e-5, nan_ok=True)
            assert relative[i, j] == pytest.approx(abs(expected) / intact, abs=1e-5, nan_ok=True)
    assert (signed < 0).any()
    assert (signed > 0).any()
    assert report.per_visit("swap_delta_nats.adjacent") == [*np.diag(signed, 1), None]
    assert report.per_visit("swap_relative.adjacent")[:3] == pytest.approx(np.diag(relative, 1))
    assert report.scalar("swap_relative.mean_all_pairs") == pytest.approx(np.nanmean(relative))
    assert report.scalar("swap_delta_nats.distance_2") == pytest.approx(np.diag(signed, 2).mean())
    low, high = report.interval("swap_relative.adjacent")
    assert 0 <= low[0] < high[0]


def test_equal_neighbours_swap_for_nothing():
    report = evaluate(twins(), models.tokens(), ["swap"])
    values = report.per_visit("swap_delta_nats.adjacent")
    assert values[1] == 0.0
    assert values[0] != 0.0 != values[2]
    assert report.per_visit("swap_relative.adjacent")[1] == 0.0


def test_cost_of_all_pairs():
    report = evaluate(models.mixing(5), models.tokens(2, 3), ["swap"])
    evals = sum(5 - i for i in range(5) for j in range(i + 1, 5))
    assert report.scalar("swap_layer_evals") == evals
    assert report.content["timing"]["layer_evals"] == 5 + evals


def test_deep_models_are_sampled_by_distance():
    probe = {"kind": "swap", "max_all": 8, "starts": 3}
    report = evaluate(models.mixing(9), models.tokens(2, 3), [probe])
    tested = np.argwhere(~np.isnan(report.arrays["swap_delta_nats.pairs"]))
    distances = np.bincount(tested[:, 1] - tested[:, 0], minlength=9)
    assert distances.tolist() == [0, 8, 3, 0, 3, 0, 0, 0, 1]
    assert report.scalar("swap_relative.mean_all_pairs") is None
    assert "15 pairs of a model deeper than 8 visits" in report.content["skipped"][0]["reason"]
    again = evaluate(models.mixing(9), models.tokens(2, 3), [probe])
    assert np.argwhere(~np.isnan(again.arrays["swap_delta_nats.pairs"])).tolist() == tested.tolist()


ORDER = "order_delta_nats"


@pytest.fixture(scope="module")
def ordered():
    model, windows = models.mixing(6, seed=3), models.tokens(4, 7)
    probe = {"kind": "order", "window": 3, "times": 3, "shuffles": 2}
    return model, windows, evaluate(model, windows, [probe])


def test_windows_in_reverse(ordered):
    model, windows, report = ordered
    orders = [[2, 1, 0, 3, 4, 5], [0, 3, 2, 1, 4, 5], [0, 1, 4, 3, 2, 5], [0, 1, 2, 5, 4, 3]]
    expected = [cost(model, windows, order) for order in orders]
    found = report.per_visit(f"{ORDER}.reversed_window")
    assert found[:4] == pytest.approx(expected, abs=1e-5)
    assert found[4:] == [None, None]


def test_repeated_visits(ordered):
    model, windows, report = ordered
    expected = [cost(model, windows, sorted([*range(6), layer, layer])) for layer in range(6)]
    assert report.per_visit(f"{ORDER}.repeated") == pytest.approx(expected, abs=1e-5)


def test_the_middle(ordered):
    model, windows, report = ordered
    expected = {"reversed": [0, 4, 3, 2, 1, 5], "replaced_by_centre": [0, 2, 2, 2, 2, 5]}
    for name, order in expected.items():
        found = report.scalar(f"{ORDER}.middle_{name}")
        assert found == pytest.approx(cost(model, windows, order), abs=1e-5)


def test_the_middle_in_parallel(ordered):
    model, windows, report = ordered
    h = states(model, windows[:, :-1])
    with torch.no_grad():
        mean = torch.stack([model.layers[layer](h[1]) for layer in (1, 2, 3, 4)]).mean(0)
        last = model.layers[5](mean)
    expected = loss(model, last, windows) - loss(model, h[-1], windows)
    assert report.scalar(f"{ORDER}.middle_parallel") == pytest.approx(expected, abs=1e-5)


def test_the_middle_shuffled(ordered):
    model, windows, report = ordered
    generator = torch.Generator().manual_seed(0)
    draws = [torch.randperm(4, generator=generator).tolist() for _ in range(2)]
    expected = [cost(model, windows, [0, *(1 + place for place in draw), 5]) for draw in draws]
    assert report.scalar(f"{ORDER}.middle_shuffled") == pytest.approx(np.mean(expected), abs=1e-5)


def test_no_middle_no_number():
    report = evaluate(models.mixing(3), models.tokens(2, 3), [{"kind": "order", "ends": 1}])
    reasons = {entry["metric"]: entry["reason"] for entry in report.content["skipped"]}
    assert reasons == {
        f"{ORDER}.middle": "fewer than two visits between the ends",
        f"{ORDER}.reversed_window": "3 visits are fewer than a window of 4",
    }


def test_equal_layers_in_any_order():
    torch.manual_seed(0)
    layer = models.Mixing()
    report = evaluate(models.Model([layer], [0] * 6), models.tokens(2, 5), ["order"])
    for name in ("middle_reversed", "middle_shuffled", "middle_replaced_by_centre"):
        assert report.scalar(f"{ORDER}.{name}") == 0.0
    assert report.per_visit(f"{ORDER}.reversed_window")[:3] == [0.0] * 3
    assert report.scalar(f"{ORDER}.middle_parallel") != 0.0
