"""On what a measurement was made."""

from __future__ import annotations

import datetime
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "transformers", "litgpt", "x-transformers")
ALLOCATOR = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
"""Beginnings of environment variables that change how memory is allocated, and with it times."""


def facts() -> dict[str, Any]:
    """Date, processor, threads, versions, and settings of the allocator."""
    return {
        "date": str(datetime.date.today()),
        "processor": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": 1,
        "python": platform.python_version(),
        "packages": versions(),
        "allocator": {name: value for name, value in os.environ.items() if name.startswith(ALLOCATOR)},
    }


def processor() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Installed versions of what is compared."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "absent"
    return found
