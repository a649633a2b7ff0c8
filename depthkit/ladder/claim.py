"""Whether a ladder may use a folder: its finished rungs must be rungs of this ladder, unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from depthkit import config as configs
from depthkit.files import write_text
from depthkit.ladder.spec import LadderConfig, Rung
from depthkit.training.folder import RunFolder, differences


def claim(ladder: LadderConfig, rungs: Sequence[Rung], folder: Path) -> None:
    """Write `ladder.yaml`; new rungs may have come and old ones gone, but none that was begun may differ.

    Raises:
        ValueError: a rung that was begun has another config now, or would be evaluated otherwise.
    """
    file = folder / "ladder.yaml"
    for rung in rungs:
        try:
            RunFolder(folder / "rungs" / rung.name).claim(rung.config, resume=True)
        except ValueError as error:
            raise ValueError(
                f"{error}\nthe other rungs are as they were; only new rungs can be added"
            ) from None
    if file.exists():
        _check_evaluation(ladder, file, folder)
    write_text(file, configs.to_yaml(ladder))


def _check_evaluation(ladder: LadderConfig, file: Path, folder: Path) -> None:
    held = yaml.safe_load(file.read_text(encoding="utf-8"))
    changes = differences(held.get("evaluate"), configs.to_dict(ladder.evaluate), "evaluate")
    if changes and any((folder / "rungs").glob("*/report.json")):
        listed = "\n  ".join(changes)
        raise ValueError(
            f"{folder} holds rungs that were evaluated otherwise; choose another --run-dir\n  {listed}"
        )


def gone(rungs: Sequence[Rung], folder: Path) -> list[str]:
    """Rungs in the folder that the ladder no longer has; they are kept and not summarised."""
    known = {rung.name for rung in rungs}
    return sorted(path.name for path in (folder / "rungs").glob("*") if path.name not in known)
