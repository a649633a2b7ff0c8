"""The order of training windows: a pure function of (seed, position), so that a run can resume anywhere."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_STREAM = int.from_bytes(b"data", "big")


def generator(seed: int, *path: int) -> np.random.Generator:
    """A random generator of the data room's own stream for `seed` and a path of counters, such as an epoch.

    Raises:
        ValueError: a negative seed.
    """
    if seed < 0:
        raise ValueError(f"seed: must be 0 or more (got {seed})")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, _STREAM, *path])))


@functools.lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, num_windows: int) -> NDArray[np.int64]:
    """The order of one epoch: [num_windows] window numbers, each once."""
    order = generator(seed, epoch).permutation(num_windows)
    order.flags.writeable = False
    return order


def window_at(seed: int, position: int, num_windows: int) -> int:
    """The window shown at a position; position n * num_windows opens epoch n."""
    epoch, place = divmod(position, num_windows)
    return int(permutation(seed, epoch, num_windows)[place])


def micro_batches(seed: int, num_windows: int, batch_size: int, start: int) -> Iterator[list[int]]:
    """Window numbers of micro-batch `start`, `start + 1`, ... without end; a batch may span two epochs."""
    position = start * batch_size
    while True:
        yield [window_at(seed, position + row, num_windows) for row in range(batch_size)]
        position += batch_size
