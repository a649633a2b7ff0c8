"""What papers claim, held against what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from depthkit.ladder.compare import Interval, interval, paired
from depthkit.utilization.statistics import Number

if TYPE_CHECKING:
    from depthkit.ladder.init_study.spec import ClaimConfig

Seeds = dict[int, Number]


@dataclass(frozen=True)
class Answer:
    """One claim at one depth: the metric, and its distance from what it is held against."""

    claim: ClaimConfig
    depth: int
    value: Interval
    reference: Interval | None
    """The other method's metric; None when the claim names a number."""
    difference: Interval
    """Metric minus reference, paired by seed."""

    @property
    def word(self) -> str:
        """`agrees`, `disagrees`, or `undecided` when the interval over seeds reaches both sides."""
        low, high = self.difference.low, self.difference.high
        if low is None or high is None:
            return "undecided"
        inside, outside = self._sides(low, high)
        return "agrees" if inside else "disagrees" if outside else "undecided"

    def _sides(self, low: float, high: float) -> tuple[bool, bool]:
        """Whether the whole interval is where the claim wants it, and whether all of it is elsewhere."""
        within = self.claim.within
        sides = {
            "lower": (high < 0, low >= 0),
            "higher": (low > 0, high <= 0),
            "near": (-within <= low and high <= within, high < -within or low > within),
        }
        return sides[self.claim.expect]

    def sentence(self) -> str:
        """The claim, the word, and the numbers behind it."""
        claim = self.claim
        wanted = f"{claim.than:g}" if self.reference is None else f"{claim.than}'s {_shown(self.reference)}"
        relation = f"within {claim.within:g} of" if claim.expect == "near" else f"{claim.expect} than"
        return (
            f"{self.word}: {claim.says} ({claim.source}). Asked for: {claim.metric} of {claim.method} "
            f"{relation} {wanted}; found {_shown(self.value)} at depth {self.depth}, "
            f"{self.value.count} seed{'s' if self.value.count > 1 else ''}."
        )


def answer(claim: ClaimConfig, depth: int, values: Seeds | None, others: Seeds | None) -> Answer | None:
    """Hold one claim against metrics by seed; None where one of them is undefined."""
    mine, theirs = _numbers(values), _numbers(others)
    if not mine or (isinstance(claim.than, str) and not theirs):
        return None
    if isinstance(claim.than, str):
        difference = paired(theirs, mine)
        reference = interval(list(theirs.values()))
    else:
        difference = interval([value - claim.than for value in mine.values()])
        reference = None
    if difference is None:
        return None
    return Answer(claim, depth, interval(list(mine.values())), reference, difference)


def _numbers(values: Seeds | None) -> dict[int, float]:
    """All of them, or none when one is undefined."""
    if values is None or None in values.values():
        return {}
    return {seed: float(value) for seed, value in values.items() if value is not None}


def _shown(found: Interval) -> str:
    if found.low is None:
        return f"{found.mean:.3g}"
    return f"{found.mean:.3g} ({found.low:.3g} to {found.high:.3g})"
