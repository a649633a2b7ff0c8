"""Where a run ran: versions, commit, machine."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import depthkit


def describe() -> dict[str, Any]:
    """Python, the versions of what depthkit depends on, the git commit if there is one, the machine."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "packages": _versions(),
        "git_commit": _commit(),
    }


def _versions() -> dict[str, str]:
    """Versions of depthkit and of its requirements, optional ones where they are installed."""
    names = {"depthkit"} | {_name(line) for line in metadata.requires("depthkit") or []}
    versions = {}
    for name in sorted(names):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _name(requirement: str) -> str:
    """The package name at the start of a requirement such as `torch>=2.10; extra == "gpu"`."""
    length = next((i for i, c in enumerate(requirement) if not (c.isalnum() or c in "-_.")), len(requirement))
    return requirement[:length]


def _commit() -> str | None:
    """The commit depthkit is run from, with `-dirty` when files differ from it; None outside a checkout."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=Path(depthkit.__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
