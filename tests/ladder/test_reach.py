"""Compute to reach the baseline's loss, against curves whose answer is known."""

import math

import pytest

from depthkit.ladder.compare import Interval
from depthkit.ladder.reach import reached_at, reaches, shown
from tests.ladder.results import make_results

AXES = {
    "method": {"plain": {"model.regulators": []}, "quick": {"model.regulators": ["lns"]}},
    "depth": [2],
    "seed": [0, 1, 2],
}


def power_law(steps, factor):
    """Losses of a run that is `factor` times quicker: loss falls as the logarithm of steps."""
    return [(step, 5.0 - math.log(step * factor)) for step in steps]


def test_a_curve_twice_as_quick_takes_half_the_compute():
    def curve(place):
        return power_law([4, 16, 64, 256], 2.0 if place["method"] == "quick" else 1.0)

    (found,) = reaches(make_results(lambda place: 3.0, curve, axes=AXES))
    assert found.ratio.mean == pytest.approx(2.0)
    assert (found.reached, found.replicates) == (3, 3)
    assert "At depth 2: quick takes 2.00 times less compute" in found.sentence()


def test_the_interval_is_that_of_logarithms_over_replicates():
    factors = [1.5, 2.0, 3.0]

    def curve(place):
        return power_law([4, 16, 64, 256], factors[place["seed"]] if place["method"] == "quick" else 1.0)

    (found,) = reaches(make_results(lambda place: 3.0, curve, axes=AXES))
    assert found.ratio.mean == pytest.approx(math.prod(factors) ** (1 / 3))
    assert found.ratio.low * found.ratio.high == pytest.approx(found.ratio.mean**2)
    assert found.ratio.low < 1.5 < 3.0 < found.ratio.high


def test_never_is_said_and_sometimes_is_counted():
    def curve(place, slow=(1.0, 0.5, 0.5)):
        return power_law([4, 16, 64, 256], slow[place["seed"]] if place["method"] == "quick" else 1.0)

    (found,) = reaches(make_results(lambda place: 3.0, curve, axes=AXES))
    assert "in 1 of 3 replicates, the others never do" in found.sentence()
    (found,) = reaches(make_results(lambda p: 3.0, lambda p: curve(p, (0.5,) * 3), axes=AXES))
    assert found.ratio is None
    assert found.sentence() == "At depth 2: quick never reaches the final loss of plain."


def test_models_of_unlike_cost_are_compared_by_flops():
    axes = {"depth": [2, 4], "seed": [0, 1]}
    results = make_results(
        lambda place: 3.0,
        lambda place: power_law([4, 16, 64, 256], 1.0),
        axes=axes,
        compare=[{"axis": "depth", "baseline": 2}],
    )
    shallow, deep = (next(r for r in results.rows if r.rung.place["depth"] == d) for d in (2, 4))
    (found,) = reaches(results)
    assert found.ratio.mean == pytest.approx(shallow.flops(256) / deep.flops(256))
    assert "times more compute" in found.sentence()


def test_an_interval_is_given_in_the_direction_of_its_mean():
    assert shown(Interval(2.0, 1.6, 2.5, 3)) == "2.00 times less compute (95 % interval 1.60 to 2.50)"
    assert shown(Interval(0.5, 0.4, 0.8, 3)) == "2.00 times more compute (95 % interval 1.25 to 2.50)"
    assert shown(Interval(0.5, None, None, 1)) == "2.00 times more compute"


def test_curves_of_too_few_points_are_left_out():
    assert reaches(make_results(lambda p: 3.0, lambda p: power_law([4, 16], 1.0), axes=AXES)) == []


@pytest.mark.parametrize(
    ("curve", "goal", "spent"),
    [
        ([(1.0, 4.0), (100.0, 2.0)], 3.0, 10.0),
        ([(1.0, 4.0), (100.0, 2.0)], 4.5, 1.0),
        ([(1.0, 4.0), (100.0, 2.0)], 1.0, None),
        ([(1.0, 4.0), (10.0, 5.0), (100.0, 3.0)], 3.0, 100.0),
        ([(1.0, 4.0), (10.0, 3.0), (100.0, 4.0)], 3.0, 10.0),
        ([], 1.0, None),
    ],
)
def test_the_first_crossing_counts_on_a_logarithmic_scale_of_compute(curve, goal, spent):
    assert reached_at(curve, goal) == (None if spent is None else pytest.approx(spent))
