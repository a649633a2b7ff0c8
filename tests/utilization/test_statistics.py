"""Token-weighted means and bootstrap intervals."""

import math

import numpy as np
import pytest

from depthkit.utilization.statistics import Sample, bootstrap, draw_counts, number, numbers, paired_difference


def sample(n=50, seed=0):
    values = np.random.default_rng(seed).normal(2.0, 1.0, n)
    return Sample(values[None] * 4, np.full((1, n), 4.0)), values


def test_means_weigh_tokens_not_sequences():
    uneven = Sample(np.array([[10.0, 1.0], [0.0, 0.0]]), np.array([[9.0, 1.0], [0.0, 0.0]]))
    assert uneven.means()[0] == pytest.approx(11 / 10)
    assert math.isnan(uneven.means()[1])


def test_standard_error_is_the_textbook_one():
    table, values = sample(200)
    interval = table.interval(0)
    expected = values.std(ddof=1) / math.sqrt(len(values))
    assert interval.error[0] == pytest.approx(expected, rel=0.1)
    assert interval.high[0] - interval.low[0] == pytest.approx(2 * 1.96 * expected, rel=0.1)
    assert interval.low[0] < values.mean() < interval.high[0]


def test_interval_is_seeded():
    table, _ = sample()
    assert table.interval(1) == table.interval(1) or np.array_equal(
        table.interval(1).low, table.interval(1).low
    )
    assert not np.array_equal(table.interval(1).low, table.interval(2).low)


def test_resamples_equal_explicit_indexing():
    table, values = sample(7)
    indices = np.random.default_rng(3).integers(0, 7, (20, 7))
    np.testing.assert_allclose(table.means(draw_counts(indices))[0], values[indices].mean(1))


def test_one_sequence_has_no_interval():
    assert bootstrap(lambda draws: draws.sum(-1), 1, 0) is None
    assert Sample(np.ones((2, 1)), np.ones((2, 1))).interval(0) is None


def test_constant_data_has_a_point_interval():
    interval = Sample(np.full((1, 5), 6.0), np.full((1, 5), 3.0)).interval(0)
    assert interval.low[0] == interval.high[0] == 2.0


def test_paired_difference_uses_the_pairing():
    """Two models that differ by a constant differ with certainty, however much sequences vary."""
    table, _ = sample(20)
    shifted = Sample(table.sums + 0.04, table.counts)
    found = paired_difference(table, shifted, 0)
    assert list(found.values()) == [pytest.approx(0.01)] * 3


def test_undefined_becomes_none():
    assert [number(v) for v in (None, math.nan, math.inf, 2)] == [None, None, None, 2.0]
    assert numbers([1.0, math.nan]) == [1.0, None]
