"""Layer utilization: what does every visit of a layer contribute?

Names are imported on first use, so reading the options of `eval.py` loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from depthkit.utilization.canaries import CanaryError
    from depthkit.utilization.evaluation import evaluate
    from depthkit.utilization.options import EvalOptions
    from depthkit.utilization.probes import PROBES
    from depthkit.utilization.report import Report
    from depthkit.utilization.report.compare import Comparison, compare
    from depthkit.utilization.report.training import Trajectory
    from depthkit.utilization.sequences import Sequences
    from depthkit.utilization.subject import Subject

__all__ = [
    "PROBES",
    "CanaryError",
    "Comparison",
    "EvalOptions",
    "Report",
    "Sequences",
    "Subject",
    "Trajectory",
    "compare",
    "evaluate",
]

_HOMES = {
    "PROBES": "probes",
    "CanaryError": "canaries",
    "Comparison": "report.compare",
    "EvalOptions": "options",
    "Report": "report",
    "Sequences": "sequences",
    "Subject": "subject",
    "Trajectory": "report.training",
    "compare": "report.compare",
    "evaluate": "evaluation",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
