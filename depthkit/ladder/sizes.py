"""How wide every rung is."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pydantic import Field

from depthkit.config import ConfigError, to_dict, validate
from depthkit.ladder.budgets import AsItIs, Named, spread
from depthkit.ladder.cost import counts
from depthkit.ladder.registries import SIZES
from depthkit.model import ModelConfig, account
from depthkit.registry import Spec
from depthkit.training.run import RunConfig


@SIZES.register("free")
class Free:
    """Widths are what each rung says; a deeper model has more parameters."""

    class Config(AsItIs):
        """No settings."""


@SIZES.register("parameters")
class Parameters:
    """Every rung has about the parameters of the base run: a deeper one is narrower.

    Heads stay as many; hidden widths keep their ratio to the width. This is how DepthBench's shapes come
    about (arXiv:2609.32534: 16 x 1216, 24 x 1024, 32 x 896, ...).
    """

    class Config(Spec):
        """Which widths there are, and how near is near enough."""

        multiple: int = Field(8, ge=1)
        """Widths are multiples of this."""
        hidden_ratio: float | None = Field(None, gt=0)
        """Hidden width over width; null keeps the base run's. 8/3, as is usual for SwiGLU, is 2.66667."""
        hidden_multiple: int = Field(8, ge=1)
        """Hidden widths are rounded up to a multiple of this."""
        tolerance: float = Field(0.05, ge=0)
        """How far apart the parameters of two rungs may be."""

        def fit(self, run: RunConfig, reference: RunConfig) -> RunConfig:
            """The run at the width whose parameters are nearest to the reference's.

            Raises:
                ConfigError: no width can be built.
            """
            target = counts(reference).stored
            widths = self._widths(run.model, target, reference.model.dim)
            best = min(widths, key=lambda model: abs(_stored(model) - target), default=None)
            if best is None:
                raise ConfigError(
                    f"fairness.size: no width that is a multiple of {self.multiple} can be built at depth "
                    f"{run.model.plan().depth}"
                )
            return run.model_copy(update={"model": best})

        def _widths(self, model: ModelConfig, target: int, dim: int) -> Iterator[ModelConfig]:
            """Every width that builds, up to the first one beyond the target."""
            for width in range(self.multiple, 64 * dim, self.multiple):
                found = self._narrowed(model, width, dim)
                if found is not None:
                    yield found
                    if _stored(found) > target:
                        return

        def _narrowed(self, model: ModelConfig, width: int, dim: int) -> ModelConfig | None:
            """The model at another width, or None where heads or another component do not fit it."""
            raw = to_dict(model)
            raw["dim"] = width
            for block in raw["blocks"].values():
                hidden = block["ffn"].get("hidden_dim")
                if hidden is not None:
                    block["ffn"]["hidden_dim"] = self._rounded(width * (self.hidden_ratio or hidden / dim))
            try:
                return validate(ModelConfig, raw, "model")
            except ConfigError:
                return None

        def _rounded(self, hidden: float) -> int:
            return math.ceil(round(hidden / self.hidden_multiple, 3)) * self.hidden_multiple

        def complaints(self, named: Named) -> list[str]:
            """Rungs of unlike size."""
            values = [counts(run).stored for _, run in named]
            found = spread(named, values, self.tolerance, "parameters")
            return [found] if found else []


def _stored(model: ModelConfig) -> int:
    return account(model, 1).stored
