"""Which row of a table by key each visit uses, at any loop count."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from torch import nn

from depthkit.model.plan import Key, Plan


class Rows:
    """Rows of a learned table: one a key, or one a slot whatever the loop (`stored`).

    A module with such a table keeps them as `rows`, where `warn_of_untrained` finds them.
    """

    def __init__(self, plan: Plan, indexing: str = "executed"):
        self.stored = indexing == "stored"
        names = dict.fromkeys(self._name(visit.key) for visit in plan.visits)
        self._numbers = {name: number for number, name in enumerate(names)}
        self._last = {segment: max(n.loop for n in names if n.segment == segment) for segment in plan.loops}

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, key: Key) -> bool:
        return self._name(key) in self._numbers

    def of(self, plan: Plan) -> list[int]:
        """The row of every visit; a loop the table does not know takes its last loop's."""
        return [self.at(visit.key) for visit in plan.visits]

    def at(self, key: Key) -> int:
        """The row of one key."""
        name = self._name(key)
        return self._numbers[name._replace(loop=min(name.loop, self._last[name.segment]))]

    def untrained(self, plan: Plan) -> dict[str, int]:
        """Segments that `plan` runs for more loops than there are rows for, with the loops there are."""
        found = {v.key.segment for v in plan.visits if v.key.segment in self._last and v.key not in self}
        return {segment: 1 + self._last[segment] for segment in found}

    def _name(self, key: Key) -> Key:
        return key._replace(loop=0) if self.stored else key


def warn_of_untrained(modules: Iterable[nn.Module], plan: Plan) -> None:
    """Warn, once a segment, where `plan` has more loops than the tables of `modules` have rows for."""
    trained: dict[str, int] = {}
    for module in modules:
        rows = getattr(module, "rows", None)
        trained |= rows.untrained(plan) if isinstance(rows, Rows) else {}
    for segment, loops in sorted(trained.items()):
        warnings.warn(
            f"segment {segment!r} was never trained past {loops} loops: later ones take what was learned for "
            "the last",
            stacklevel=4,
        )
