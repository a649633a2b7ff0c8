"""How long every rung trains."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from depthkit.config import to_dict, validate
from depthkit.ladder.cost import train_flops, train_tokens
from depthkit.ladder.registries import BUDGETS
from depthkit.registry import Spec
from depthkit.training.run import RunConfig

Named = Sequence[tuple[str, RunConfig]]
"""Rungs that are to be comparable: name and run."""


def spread(named: Named, values: Sequence[float], tolerance: float, what: str) -> str | None:
    """A sentence when the largest value is more than `tolerance` above the smallest; names both rungs."""
    low, high = min(values), max(values)
    if high <= low * (1 + tolerance):
        return None
    first, last = (named[list(values).index(value)][0] for value in (low, high))
    return f"{what}: {low:,.4g} in {first} but {high:,.4g} in {last}, more than {tolerance:.0%} apart"


class AsItIs(Spec):
    """A rule that changes no run and asks for nothing."""

    def fit(self, run: RunConfig, reference: RunConfig) -> RunConfig:
        """The run as it is."""
        return run

    def complaints(self, named: Named) -> list[str]:
        """Nothing is asked for."""
        return []


@BUDGETS.register("tokens")
class Tokens:
    """Every rung sees equally many tokens; rungs that do not are refused."""

    class Config(AsItIs):
        """No settings."""

        def complaints(self, named: Named) -> list[str]:
            """Rungs of unlike tokens."""
            found = spread(named, [train_tokens(run) for _, run in named], 0.0, "training tokens")
            return [found] if found else []


@BUDGETS.register("flops")
class Flops:
    """Every rung spends the training FLOPs of the base run, by taking more or fewer steps."""

    class Config(Spec):
        """How near is near enough."""

        tolerance: float = Field(0.05, ge=0)
        """How far apart the FLOPs of two rungs may be; steps are whole, so they differ a little."""

        def fit(self, run: RunConfig, reference: RunConfig) -> RunConfig:
            """The run with as many steps as spend the reference's FLOPs."""
            raw = to_dict(run)
            per_step = train_flops(run) / run.total_steps
            raw["train"] |= {"steps": max(1, round(train_flops(reference) / per_step)), "tokens": None}
            return validate(RunConfig, raw, "equal FLOPs")

        def complaints(self, named: Named) -> list[str]:
            """Rungs of unlike FLOPs."""
            found = spread(named, [train_flops(run) for _, run in named], self.tolerance, "training FLOPs")
            return [found] if found else []


@BUDGETS.register("free")
class Free:
    """Rungs may train for as long as each is told to; comparisons are then not at equal cost."""

    class Config(AsItIs):
        """No settings."""
