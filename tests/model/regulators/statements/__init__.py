"""What every regulator does, said once more and independently: one file a kind, found by its name.

A file has `site(at)`, the gains (read, write, skip) of one site as plain numbers or functions of the learned
parameters, and may have `outer(at)` (gains `final` and `logits`), `rule(at, role)` (multipliers on the initial
value, learning rate, epsilon and weight decay of a parameter inside a block), `norm_start(at)` (the first value
of the gain of the norm before the branch) and `VARIANTS`, settings other than the defaults that are held to the
same statement.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, NamedTuple

NAMES = sorted(module.name for module in pkgutil.iter_modules(__path__))


class At(NamedTuple):
    """Where a statement is asked: visit number and branch, the plan's sizes, settings, learned parameters."""

    index: int
    layer: int
    branch: int
    depth: int
    layers: int
    loops: int
    dim: int
    settings: Any
    learned: dict[str, Any]
    training: bool = True
    step: int = 3

    @property
    def l(self):  # noqa: E743
        """1-based number of the visit, or of the layer."""
        return 1 + (self.layer if self.settings.index == "stored" else self.index)

    @property
    def L(self):
        """Depth that goes with l."""
        return self.layers if self.settings.index == "stored" else self.depth


def of(kind):
    """The statement of a kind."""
    return importlib.import_module(f"{__name__}.{kind}")
