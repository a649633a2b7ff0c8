from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthkit.data import store
from depthkit.data.conversations.layout import best_fit, lay_out
from depthkit.data.conversations.supply import spread

LENGTHS = st.lists(st.integers(1, 12), max_size=40)


@given(LENGTHS, st.integers(12, 30))
def test_windows_are_never_overfull_and_no_item_fits_an_earlier_one_better(lengths, space):
    """Against a walk over all windows for each item."""
    expected, room = {}, []
    for item in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        fitting = [left for left in room if left >= lengths[item]]
        if not fitting:
            room.append(space)
            fitting = [space]
        expected[item] = min(fitting)
        room[room.index(min(fitting))] -= lengths[item]
    windows = best_fit(np.array(lengths, np.int64), space)
    filled = Counter()
    for item in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        assert space - filled[windows[item]] == expected[item]
        filled[windows[item]] += lengths[item]
    assert sorted(space - total for total in filled.values()) == sorted(room)


def written(folder, documents):
    store.write(folder, {"train": [np.array([ids, mask]) for ids, mask in documents]}, 100)
    return store.read(folder)["train"]


DOCUMENTS = [
    ([1, 2, 3], [0, 0, 1]),
    ([4] * 9, [0] * 8 + [1]),  # all that is scored lies beyond a window of 5 + 1
    ([5] * 9, [0] * 4 + [1] * 5),
    ([6, 7], [0, 1]),
    ([8, 9, 10], [0, 1, 1]),
]


def test_what_is_cut_left_out_and_packed(tmp_path):
    layout = lay_out(written(tmp_path / "store", DOCUMENTS), 5)
    windows = [layout.window(number).tolist() for number in range(layout.num_windows)]
    assert windows == [[2], [0, 4], [3]]
    assert (layout.truncated, layout.dropped) == (1, 1)
    assert layout.scored.tolist() == [2, 3, 1]
    assert layout.lengths[2] == 6


def test_what_just_fits_is_not_cut(tmp_path):
    layout = lay_out(written(tmp_path / "store", [([1] * 6, [0] * 5 + [1]), ([1] * 7, [0, 1] + [0] * 5)]), 5)
    assert (layout.truncated, layout.dropped) == (1, 0)


def test_nothing_is_left(tmp_path):
    layout = lay_out(written(tmp_path / "store", DOCUMENTS[1:2]), 5)
    assert (layout.num_windows, layout.dropped) == (0, 1)


def test_a_store_keeps_what_is_scored_beside_the_ids(tmp_path):
    split = written(tmp_path / "store", DOCUMENTS)
    assert split.tokens.tolist() == [i for ids, _ in DOCUMENTS for i in ids]
    assert split.scored.tolist() == [bool(s) for _, mask in DOCUMENTS for s in mask]
    assert isinstance(split.scored, np.memmap)
    other = written(tmp_path / "other", [([1, 2, 3], [0, 1, 1]), *DOCUMENTS[1:]])
    assert other.sha256 != split.sha256
    mask = tmp_path / "store" / "train.scored"
    mask.write_bytes(mask.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"damaged token cache.*train.scored does not hold 26 bytes"):
        store.read(tmp_path / "store")


@pytest.mark.parametrize(("most", "expected"), [(None, 6), (100, 6), (29, 5), (13, 2), (5, 1), (1, 1)])
def test_a_limit_is_kept_by_evenly_spread_windows(most, expected):
    scored = np.array([5, 5, 5, 5, 5, 5])
    chosen = spread(scored, most)
    assert len(chosen) == expected
    assert chosen == [n * 6 // expected for n in range(expected)]


def test_a_limit_counts_the_windows_that_are_taken():
    scored = np.array([90, 1, 1, 1, 90, 1, 1, 1])
    assert spread(scored, 95) == [0, 2, 5]  # four would be 0, 2, 4, 6
