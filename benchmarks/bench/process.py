"""Memory of this process."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import psutil

MIB = 2**20


def resident() -> float:
    """MiB that are resident now."""
    return psutil.Process().memory_info().rss / MIB


def peak() -> float:
    """The most MiB that have ever been resident.

    Linux's own count is of this program; `getrusage`, which stands in elsewhere, starts at its parent's.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(
            line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines() if ":" in line
        )
        if "VmHWM" in lines:
            return int(lines["VmHWM"].split()[0]) / 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB
