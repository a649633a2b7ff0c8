"""Who is best, who is tied, and which learning rate counts."""

import itertools

from scipy import stats

from depthkit.ladder.ranking import rankings
from depthkit.ladder.summary import Summary
from tests.ladder.results import make_results

METHODS = {name: {"model.regulators": kinds} for name, kinds in
           {"plain": [], "lns": ["lns"], "scaled": ["scaled_init"]}.items()}  # fmt: skip
AXES = {"method": METHODS, "depth": [2], "seed": [0, 1, 2, 3]}
NOISE = [0.3, -0.2, 0.1, -0.15]
OWN = {"plain": [0.01, -0.01, 0.02, 0.0], "lns": [-0.01, 0.02, 0.0, 0.01], "scaled": [0.0, 0.0, 0.0, 0.0]}
MEAN = {"plain": 3.0, "lns": 3.004, "scaled": 2.5}


def loss(place):
    """Seeds differ more than methods do, which pairing takes out."""
    return MEAN[place["method"]] + NOISE[place["seed"]] + OWN[place["method"]][place["seed"]]


def test_the_clear_winner_is_first_and_the_others_are_tied():
    (ranking,) = rankings(make_results(loss, axes=AXES))
    assert {item.label: item.rank for item in ranking.ranked} == {"scaled": 1, "plain": 2, "lns": 2}
    assert ranking.sentence() == "At depth 2: 1. scaled; 2. plain, lns (tied)."


def test_ranks_follow_from_paired_tests_of_all_pairs_corrected_together():
    by_method = {m: [loss({"method": m, "seed": s}) for s in range(4)] for m in METHODS}
    pairs = list(itertools.combinations(METHODS, 2))
    raw = [stats.ttest_rel(by_method[a], by_method[b]).pvalue for a, b in pairs]
    adjusted = stats.false_discovery_control(raw)
    beaten = dict.fromkeys(METHODS, 0)
    for (a, b), p in zip(pairs, adjusted, strict=True):
        if p <= 0.05:
            beaten[a if sum(by_method[a]) > sum(by_method[b]) else b] += 1
    (ranking,) = rankings(make_results(loss, axes=AXES))
    assert {item.label: item.rank - 1 for item in ranking.ranked} == beaten


def test_more_places_make_the_correction_stricter():
    def faint(place):
        seed, lower = place["seed"], {"plain": 0.0, "lns": -0.02, "scaled": 0.0}[place["method"]]
        return 3.0 + (lower if place["depth"] == 2 else 0.0) + 0.01 * ((seed * 7 + len(place["method"])) % 4)

    def words(depths):
        results = make_results(faint, axes={**AXES, "depth": depths})
        return [v.q for v in Summary(results).verdicts if v.where["depth"] == 2 and v.value == "lns"]

    assert words([2])[0] < words([2, 4, 8])[0]


def test_one_replicate_gives_no_ranking():
    assert rankings(make_results(loss, axes={**AXES, "seed": [0]})) == []


def swept_loss(place):
    best = {"plain": 0.1, "lns": 0.01, "scaled": 0.1}[place["method"]]
    return loss(place) + (0.0 if place["train.lr"] == best else 1.0)


SWEPT = {"learning_rate": {"kind": "swept", "values": [0.001, 0.01, 0.1]}}


def test_each_method_is_compared_at_its_best_learning_rate():
    results = make_results(swept_loss, axes=AXES, fairness=SWEPT)
    assert results.axes == ["method", "depth"]
    assert {place[0]: rows[0].rung.config.train.lr for place, rows in results.cells.items()} == {
        "plain": 0.1,
        "lns": 0.01,
        "scaled": 0.1,
    }
    assert rankings(results)[0].sentence() == "At depth 2: 1. scaled; 2. plain, lns (tied)."
    rates = Summary(results).sentences()["Best learning rates"]
    assert rates[1] == "method lns, depth 2: 0.01"
    assert rates[0].endswith("0.1, at the end of the range: it may lie beyond")


def test_a_rate_at_which_a_replicate_failed_is_not_the_best():
    failed = ["method-lns_depth-2_lr-0.01_seed-1"]
    results = make_results(swept_loss, axes=AXES, fairness=SWEPT, failed=failed)
    (rows,) = [rows for place, rows in results.cells.items() if place[0] == "lns"]
    assert rows[0].rung.config.train.lr != 0.01
    assert len(rows) == 4


def test_failed_rungs_are_named_and_leave_comparisons_over_the_others():
    results = make_results(loss, axes=AXES, failed=["method-plain_depth-2_seed-3"])
    summary = Summary(results)
    assert [row.rung.name for row in summary.unfinished] == ["method-plain_depth-2_seed-3"]
    assert {v.difference.count for v in summary.verdicts} == {3}
    assert summary.content()["unfinished"] == {"method-plain_depth-2_seed-3": "failed: no luck"}


def test_labels_that_are_lists_can_be_places():
    axes = {"model.regulators": [[], ["lns"]], "seed": [0, 1]}
    compare = [{"axis": "model.regulators", "baseline": []}]
    results = make_results(lambda place: 3.0 + len(place["model.regulators"]), axes=axes, compare=compare)
    (verdict,) = Summary(results).verdicts
    assert (verdict.value, verdict.baseline, verdict.word) == ("['lns']", "[]", "higher")
