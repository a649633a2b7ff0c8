"""Where every rung's learning rate comes from."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from depthkit.config import set_value
from depthkit.ladder.axes import RATE
from depthkit.ladder.registries import RATES
from depthkit.registry import Spec

TRANSFERRING = ("completep", "depth_mup")
"""Regulators that transfer a learning rate over depth by themselves."""


@RATES.register("fixed")
class Fixed:
    """Every rung has the learning rate it is given: the base run's, or an axis's."""

    class Config(Spec):
        """No settings."""

        def axes(self) -> dict[str, list[Any]]:
            """None to add."""
            return {}

        def treat(self, run: Any) -> Any:
            """The raw run as it is."""
            return run


@RATES.register("swept")
class Swept:
    """Every rung is trained at each of some rates; the summary shows each method and depth at its best.

    The best is chosen by the very loss that is reported, which favours nobody where all have equally many.
    """

    class Config(Spec):
        """The rates."""

        values: list[float] = Field(min_length=2)
        """Peak learning rates."""

        def axes(self) -> dict[str, list[Any]]:
            """The axis of learning rates."""
            return {RATE: list(self.values)}

        def treat(self, run: Any) -> Any:
            """The raw run as it is."""
            return run


@RATES.register("transferred")
class Transferred:
    """The rate was tuned at `base_depth` and is carried to every depth by CompleteP (arXiv:2505.01618).

    Every rung gets the regulator `completep` with this base, beside those it has; one that already has it, or
    `depth_mup`, gets the base only.
    """

    class Config(Spec):
        """Where the learning rate was tuned."""

        base_depth: int = Field(ge=1)
        """Depth at which `train.lr` was tuned."""
        base_dim: int | None = Field(None, ge=1)
        """Width at which it was tuned; null means each rung's own."""

        def axes(self) -> dict[str, list[Any]]:
            """None to add."""
            return {}

        def treat(self, run: Any) -> Any:
            """The raw run with `completep` at this base."""
            base = {"base_depth": self.base_depth, "base_dim": self.base_dim}
            listed = [
                {"kind": item} if isinstance(item, str) else item
                for item in run.get("model", {}).get("regulators", [])
            ]
            own = [item["kind"] in TRANSFERRING for item in listed]
            found = [{**item, **base} if has else item for item, has in zip(listed, own, strict=True)]
            added = [] if any(own) else [{"kind": "completep", **base}]
            return set_value(run, "model.regulators", found + added)
