"""Keys and values of earlier positions, one slot a visit, so that decoding computes new positions only.

Slots are found by the visit's key `(segment, loop, slot)`. The number of loops may differ between calls, for
instance 8 for the prompt and 4, or 16, for what follows. A position that ran with r loops has no keys of loop
r and later; a visit that looks for them there sees those of loop r - 1, the last one the position has:

    keys that a visit of loop t sees at position p  =  those of loop min(t, loops(p) - 1) at p

(the sharing of arXiv:2502.05171: reuse the last computed loop). So what is computed with a cache equals the
computation without one in which every position runs with its own number of loops under that rule. With one
loop count throughout, the rule has nothing to say and that computation is the plain forward. Equality is up
to rounding: products over one position are not those over many.

Shapes: B batch, K key/value heads, T new positions, S positions so far, C head_dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from depthkit.model.plan import Key


class Slot:
    """What one visit keeps. Made by `Cache.slot`.

    Args:
        previous: the slot of the loop before, or None in the first loop.
        capacity: positions to allocate at first; the store doubles when it is full.
    """

    def __init__(self, previous: Slot | None = None, capacity: int = 0):
        self.length = 0
        """Positions held."""
        self._previous = previous
        self._capacity = capacity
        self._store: tuple[Tensor, Tensor] | None = None

    @property
    def entries(self) -> tuple[Tensor, Tensor]:
        """Keys and values so far, `[B, K, length, C]` each, as views."""
        assert self._store is not None, "nothing was appended"
        keys, values = self._store
        return keys[:, :, : self.length], values[:, :, : self.length]

    @property
    def num_bytes(self) -> int:
        """Bytes allocated."""
        return sum(x.nbytes for x in self._store or ())

    def before(self, time: int) -> int:
        """How many positions stand before the next `time` ones, of which earlier loops already have keys."""
        return self.length if self._previous is None else self._previous.length - time

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add T positions and return all: `[B, K, T, C]` twice -> `[B, K, S, C]` twice.

        Positions that the visit never saw come from the loop before, which has been completed in the same
        way, and so from the last loop that has them.

        Raises:
            ValueError: another batch than before, or gradients are wanted.
        """
        self._check(k)
        if self._previous is not None:
            start = self.before(k.shape[2])
            assert self.length <= start, "loops run in order, each visit once a forward"
            missing = [x[:, :, self.length : start] for x in self._previous.entries]
            self._write(*missing)
        self._write(k, v)
        return self.entries

    def _check(self, k: Tensor) -> None:
        if torch.is_grad_enabled() and k.requires_grad:
            raise ValueError("cache: it is written in place and passes no gradient; use torch.no_grad()")
        if self._store is not None and k.shape[0] != len(self._store[0]):
            raise ValueError(
                f"cache: holds {len(self._store[0])} sequences and was given {len(k)}; it is for one batch"
            )

    def _write(self, k: Tensor, v: Tensor) -> None:
        end = self.length + k.shape[2]
        self._reserve(end, k, v)
        assert self._store is not None
        for store, new in zip(self._store, (k, v), strict=True):
            store[:, :, self.length : end] = new
        self.length = end

    def _reserve(self, needed: int, *like: Tensor) -> None:
        if self._store is not None and needed <= self._capacity:
            return
        self._capacity = max(needed, self._capacity if self._store is None else 2 * self._capacity)
        old = self._store and self.entries
        keys, values = (x.new_empty(*x.shape[:2], self._capacity, x.shape[3]) for x in like)
        for index, store in enumerate((keys, values) if old else ()):
            assert old
            store[:, :, : self.length] = old[index]
        self._store = keys, values


class Cache:
    """The slots of a model's visits, for one batch.

    Args:
        capacity: positions to allocate a slot at first, prompt and continuation together; 0 allocates what
            the prompt needs. Slots grow either way.
    """

    def __init__(self, capacity: int = 0):
        self._capacity = capacity
        self._slots: dict[Key, Slot] = {}

    @property
    def length(self) -> int:
        """Positions held, between forwards: where the next query stands."""
        return max((slot.length for slot in self._slots.values()), default=0)

    @property
    def num_bytes(self) -> int:
        """Bytes allocated by all slots."""
        return sum(slot.num_bytes for slot in self._slots.values())

    def slot(self, key: Key) -> Slot:
        """The slot of a visit; ask for loop t only once loop t - 1 has been visited."""
        if key not in self._slots:
            previous = self.slot(key._replace(loop=key.loop - 1)) if key.loop else None
            self._slots[key] = Slot(previous, self._capacity)
        return self._slots[key]
