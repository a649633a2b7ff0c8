"""depthkit: is the depth of my transformer doing any work, and what makes it work?

model = depthkit.build("configs/quickstart.yaml")        # from a config file or a validated config
model = depthkit.load("runs/quickstart-1a2b3c4d")         # from a run folder or a checkpoint
report = depthkit.evaluate(model, sequences)              # what does every layer contribute?
"""

from __future__ import annotations

import importlib
from typing import Any

from depthkit.interop.announce import announce

__version__ = "0.1.0"

_PUBLIC = {
    "build": "depthkit.api",
    "load": "depthkit.api",
    "evaluate": "depthkit.utilization",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    """Import public functions on first use: `import depthkit` stays free of torch."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'depthkit' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


announce()
