from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from depthkit.data.packing import num_full_windows, num_windows, windows_at

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def pack(lengths: list[int], sequence_length: int, count: int):
    """The row of tokens 0, 1, 2, ... cut into documents of the given lengths."""
    tokens = np.arange(sum(lengths), dtype=np.uint16)
    starts = np.cumsum([0, *lengths])[:-1]
    return windows_at(tokens, starts, np.arange(count), sequence_length)


@given(LENGTHS, st.integers(1, 20))
def test_every_token_but_the_first_is_a_target_once(lengths, sequence_length):
    total = sum(lengths)
    windows, _ = pack(lengths, sequence_length, num_windows(total, sequence_length))
    targets = windows[:, 1:]
    assert Counter(targets[targets != -100].tolist()) == Counter(range(1, total))


@given(LENGTHS, st.integers(1, 20))
def test_full_windows_are_unpadded_and_miss_less_than_one_window(lengths, sequence_length):
    total = sum(lengths)
    count = num_full_windows(total, sequence_length)
    windows, documents = pack(lengths, sequence_length, count)
    assert (windows >= 0).all()
    assert (documents >= 0).all()
    assert 0 <= total - 1 - count * sequence_length < sequence_length


@given(LENGTHS, st.integers(1, 20))
def test_a_target_is_the_next_token(lengths, sequence_length):
    windows, _ = pack(lengths, sequence_length, num_windows(sum(lengths), sequence_length))
    scored = windows[:, 1:] != -100
    assert (windows[:, 1:][scored] == windows[:, :-1][scored] + 1).all()


@given(LENGTHS, st.integers(1, 20))
def test_document_numbers_agree_with_a_walk_over_the_tokens(lengths, sequence_length):
    owner = [number for number, length in enumerate(lengths) for _ in range(length)]
    windows, documents = pack(lengths, sequence_length, num_windows(len(owner), sequence_length))
    for row in range(len(windows)):
        first = owner[windows[row, 0]]
        expected = [owner[token] - first if token >= 0 else -1 for token in windows[row, :-1].tolist()]
        assert documents[row].tolist() == expected
