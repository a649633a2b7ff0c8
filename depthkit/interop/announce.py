"""Lets `transformers` know depthkit's architecture as soon as both are imported, in whichever order.

Imports nothing heavy: where `transformers` is not loaded yet, a finder waits for its table of architectures.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

TABLE = "transformers.models.auto.modeling_auto"
ARCHITECTURE = "depthkit.interop.architecture"


def announce() -> None:
    """Register the architecture now, or once `transformers` has loaded its table."""
    if TABLE in sys.modules:
        importlib.import_module(ARCHITECTURE)
    elif not any(isinstance(finder, _Waiting) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Waiting())


class _Waiting(MetaPathFinder):
    """Finds the table through the other finders, once."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The table's own spec, with a loader that registers afterwards; None for everything else."""
        if fullname != TABLE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(spec.loader)
        return spec


class _Registering(Loader):
    """Another loader, after which the architecture is registered."""

    def __init__(self, loader: Any):
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the other loader does."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the other loader does, then register."""
        spec = module.__spec__
        assert spec is not None
        spec.loader = self.loader
        self.loader.exec_module(module)
        importlib.import_module(ARCHITECTURE)
