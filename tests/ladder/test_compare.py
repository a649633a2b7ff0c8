import math

import pytest
from scipy import stats

from depthkit.ladder.compare import Verdict, correct, corrected, differences, interval, p_value, paired

PLACE = {"model.embedding_std": 0.02, "depth": 32}


def verdict(first, second):
    found = differences(dict(enumerate(first)), dict(enumerate(second)))
    return correct([Verdict("method", "lns", "pre_ln", PLACE, interval(found), p_value(found))])[0]


def test_interval_is_student_t():
    values = [1.0, 2.0, 4.0]
    found = interval(values)
    half = stats.t.ppf(0.975, 2) * math.sqrt(stats.tvar(values) / 3)
    assert found.mean == pytest.approx(7 / 3)
    assert found.low == pytest.approx(7 / 3 - half)
    assert found.half_width == pytest.approx(half)


def test_a_clear_difference_is_named_with_its_sign():
    assert verdict([2.5, 2.6, 2.7], [2.4, 2.5, 2.61]).word == "lower"
    sentence = verdict([2.5, 2.6, 2.7], [2.6, 2.71, 2.8]).sentence()
    assert sentence.startswith("At embedding_std 0.02, depth 32: lns ends 0.103 nat higher than pre_ln")
    assert "3 paired replicates" in sentence


def test_an_interval_across_zero_is_a_tie():
    found = verdict([2.5, 2.6, 2.7], [2.4, 2.7, 2.71])
    assert found.word == "tied"
    assert "tied" in found.sentence()


def test_one_replicate_gives_no_verdict():
    found = verdict([2.5], [2.4])
    assert found.word == "undecided"
    assert "no interval and no verdict" in found.sentence()


def test_p_is_that_of_the_paired_t_test():
    first, second = [2.5, 2.6, 2.7], [2.45, 2.5, 2.68]
    expected = stats.ttest_rel(second, first).pvalue
    assert p_value(differences(dict(enumerate(first)), dict(enumerate(second)))) == pytest.approx(expected)
    assert p_value([0.0, 0.0]) == 1.0
    assert p_value([-0.1, -0.1]) == 0.0
    assert p_value([0.3]) is None


def test_correction_is_benjamini_hochberg_and_leaves_out_what_has_no_p():
    values = [0.01, None, 0.04, 0.03, 0.9]
    ordered = sorted(v for v in values if v is not None)
    scaled = [p * len(ordered) / rank for rank, p in enumerate(ordered, 1)]
    by_hand = {p: min(scaled[i:]) for i, p in enumerate(ordered)}
    assert corrected(values) == [None if v is None else pytest.approx(by_hand[v]) for v in values]
    assert corrected([None]) == [None]


def test_a_difference_that_one_test_would_name_is_tied_among_many():
    alone = Verdict("method", "lns", "pre_ln", {}, interval([-0.1, -0.2, -0.15]), p=0.03)
    assert correct([alone])[0].word == "lower"
    crowd = [Verdict("method", str(i), "pre_ln", {}, interval([0.1, -0.1]), p=0.5) for i in range(9)]
    found = correct([alone, *crowd])[0]
    assert found.word == "tied"
    assert "corrected p 0.300" in found.sentence()


def test_pairs_are_matched_by_replicate():
    assert paired({0: 1.0, 1: 5.0}, {1: 6.0, 2: 0.0}).mean == 1.0
    assert paired({0: 1.0}, {1: 1.0}) is None


def test_equal_differences_have_no_width():
    assert interval([0.5, 0.5]).low == 0.5
    assert verdict([1.0, 2.0], [1.0, 2.0]).word == "tied"


def test_numbers_are_named_by_their_axis():
    found = Verdict("depth", 32, 4, {"method": "lns"}, interval([-0.3, -0.31]), 0.01, 0.01)
    assert found.sentence().startswith("At method lns: depth 32 ends 0.305 nat lower than depth 4")
