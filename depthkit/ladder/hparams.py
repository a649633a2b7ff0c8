"""The rungs of a ladder for TensorBoard's HParams page: `tensorboard --logdir DIR/hparams`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from depthkit.ladder.axes import short_name
from depthkit.ladder.results import Results, Row
from depthkit.ladder.table import SCALARS


def save_hparams(results: Results, folder: Path) -> None:
    """One session a finished rung: its place on the axes, its loss, effective depths; replaces `folder`."""
    from torch.utils.tensorboard import SummaryWriter

    shutil.rmtree(folder, ignore_errors=True)
    for row in results.rows:
        if row.report is None:
            continue
        values = {short_name(axis): _plain(value) for axis, value in row.rung.place.items()}
        with SummaryWriter(str(folder / row.rung.name)) as writer:
            writer.add_hparams(values, _metrics(row), run_name=".")


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else str(value)


def _metrics(row: Row) -> dict[str, float]:
    found = {"loss_nats": row.loss, **{name: row.scalar(name) for name in SCALARS}}
    return {f"rung/{name}": value for name, value in found.items() if value is not None}
