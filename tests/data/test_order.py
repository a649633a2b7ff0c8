from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthkit.data.order import generator, micro_batches, permutation, window_at


@given(st.integers(0, 2**40), st.integers(0, 50), st.integers(1, 200))
def test_an_epoch_shows_every_window_once(seed, epoch, count):
    shown = [window_at(seed, epoch * count + place, count) for place in range(count)]
    assert sorted(shown) == list(range(count))


@given(st.integers(0, 9), st.integers(1, 12), st.integers(1, 30), st.integers(0, 20))
def test_starting_late_gives_the_tail(seed, batch_size, num_windows, start):
    whole = list(islice(micro_batches(seed, num_windows, batch_size, 0), start + 5))
    assert list(islice(micro_batches(seed, num_windows, batch_size, start), 5)) == whole[start:]


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [permutation(seed, epoch, 100).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4


def test_the_order_is_pinned():
    """A change here changes every training run."""
    assert permutation(0, 0, 8).tolist() == PINNED


def test_the_order_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        permutation(3, 0, 8)[0] = 1


def test_a_negative_seed_is_refused():
    with pytest.raises(ValueError, match="seed"):
        generator(-1)


def test_paths_give_independent_generators():
    draws = [generator(0, *path).integers(2**60) for path in ((0, 1), (1, 0), (1, 1))]
    assert len(np.unique(draws)) == 3


PINNED = [1, 2, 4, 0, 6, 7, 5, 3]
