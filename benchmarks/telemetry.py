"""What a telemetry step costs: its time over a plain step's, interleaved in one process, on one thread.

    python benchmarks/telemetry.py

Goal: at most 1.5 plain steps.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from depthkit import config as configs
from depthkit.data import open_data
from depthkit.files import write_json
from depthkit.model import Transformer
from depthkit.training import optim
from depthkit.training.telemetry import DepthTelemetry
from depthkit.training.trainer import Trainer

SHAPES = ((32, 8, 64), (32, 32, 64), (64, 32, 64), (64, 4, 256))
ROUNDS, WARM_UP = 24, 4
GOAL = 1.5


def make_trainer(dim: int, depth: int, length: int) -> Trainer:
    """The demo's run at another size."""
    run = configs.load(
        Path(__file__).parent.parent / "configs" / "base" / "demo.yaml",
        [f"model.dim={dim}", f"model.segments.core.repeat={depth}", f"data.sequence_length={length}"],
    )
    data = open_data(run.data, run.seed)
    run = run.with_vocabulary(data.tokenizer.vocab_size)
    trainer = Trainer(run, Transformer(run.model, run.seed), data)
    optim.set_lr(trainer.optimizer, run.train.lr)
    return trainer


def seconds(trainer: Trainer, step: int, telemetry: DepthTelemetry | None) -> float:
    """Process time of one step, the making of the telemetry row included."""
    batch = next(trainer.data.train(trainer.config.train.batch_size, start=step))
    began = time.process_time()
    trainer.stepper.take([batch], step, telemetry)
    if telemetry is not None:
        telemetry.row()
    return time.process_time() - began


def main() -> None:
    """Measure every shape, print a table, write JSON."""
    torch.set_num_threads(1)
    table = Table("dim", "depth", "length", "plain step (ms)", "telemetry / plain", "quartiles", box=None)
    rows = []
    for dim, depth, length in SHAPES:
        trainer = make_trainer(dim, depth, length)
        pairs = [
            (seconds(trainer, n, None), seconds(trainer, n, DepthTelemetry())) for n in range(1, ROUNDS + 1)
        ][WARM_UP:]
        ratios = [watched / plain for plain, watched in pairs]
        low, median, high = statistics.quantiles(ratios, n=4)
        plain = 1e3 * statistics.median(p for p, _ in pairs)
        table.add_row(
            str(dim), str(depth), str(length), f"{plain:.1f}", f"{median:.2f}", f"{low:.2f}-{high:.2f}"
        )
        rows.append({"dim": dim, "depth": depth, "length": length, "plain_ms": plain, "ratio": median})
    Console(highlight=False).print(table, f"goal: at most {GOAL}")
    path = Path(tempfile.gettempdir()) / "depthkit-telemetry.json"
    write_json(path, rows)
    print(path)


if __name__ == "__main__":
    main()
