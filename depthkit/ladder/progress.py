"""How far a rung is, read from the end of its metrics file."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from depthkit.ladder.cost import evaluated_visits, train_tokens
from depthkit.ladder.spec import Rung
from depthkit.ladder.state import FINISHED, RungFiles
from depthkit.utilization.options import EvalOptions

TAIL = 1 << 16
"""Bytes read from the end of a metrics file; a row of training is a few hundred."""


class Progress(NamedTuple):
    """Steps taken, the last training loss (nats), and tokens a second."""

    step: int = 0
    loss: float | None = None
    speed: float | None = None


def progress(files: RungFiles) -> Progress:
    """The last training row of a rung; zeros before the first."""
    try:
        with open(files.metrics, "rb") as file:
            file.seek(max(0, os.path.getsize(files.metrics) - TAIL))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return Progress()
    for line in reversed(lines):
        if line.startswith(b'{"event": "train"') and line.endswith(b"}"):
            row = json.loads(line)
            return Progress(row["step"], row.get("loss"), row.get("tok_s"))
    return Progress()


def weight(rung: Rung, options: EvalOptions) -> float:
    """What a rung costs, in layer evaluations of one token: training counts three for every visit."""
    run, depth = rung.config, rung.config.model.plan().depth
    length = options.length(run.data.sequence_length)
    evaluation = evaluated_visits(options, depth) * options.sequences * length
    return 3.0 * depth * train_tokens(run) + evaluation


def done_share(rung: Rung, files: RungFiles, options: EvalOptions) -> float:
    """The share of a rung's cost that is spent: its evaluation counts when it is finished."""
    if files.state().state == FINISHED:
        return 1.0
    training = 3.0 * rung.config.model.plan().depth * train_tokens(rung.config)
    share = min(1.0, progress(files).step / rung.config.total_steps)
    return share * training / weight(rung, options)
