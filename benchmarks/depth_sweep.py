"""Twenty steps at 8 to 512 blocks for every regulator, norm and stream: does it train, and stay finite?

    python benchmarks/depth_sweep.py [PAGE]

Width 16, one window of 8 tokens a step; only finiteness and the sizes of loss and gradient are looked at.
Every kind stands in the plainest model that takes it, at its default settings. With PAGE, a Markdown page is
written.
"""

from __future__ import annotations

import datetime
import math
import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from depthkit import config as configs
from depthkit.data import open_data
from depthkit.data.data import Data
from depthkit.files import write_text
from depthkit.ladder.hosts import tried
from depthkit.model import Transformer
from depthkit.training import optim
from depthkit.training.trainer import Trainer

ROOT = Path(__file__).parent.parent
DEPTHS, STEPS, LR = (8, 64, 256, 512), 20, 1e-3
BASE = "configs/base/demo.yaml"
OVERRIDES = (
    "model.dim=16",
    "model.blocks.dense.ffn.hidden_dim=32",
    "data.sequence_length=8",
    "train.batch_size=1",
    f"train.steps={STEPS}",
    f"train.lr={LR}",
    "train.schedule.warmup=4",
)

SETTING = f"""{STEPS} AdamW steps at learning rate {LR:g} (4 of warm-up, clip 1), width 16, one window of 8
tokens a step, one seed. Every regulator, norm and stream stands in the plainest model that takes it, at its
default settings. A cell is the loss of the first step, the loss of the last, and in brackets the largest
gradient norm before clipping. Losses this early say that training runs, not which method is better.
"""


@dataclass(frozen=True)
class Result:
    """Twenty steps of one model; `error` says why there are fewer."""

    first: float = math.nan
    last: float = math.nan
    gradient: float = math.nan
    error: str = ""

    def cell(self) -> str:
        """First and last loss, and the largest gradient norm."""
        return self.error or f"{self.first:.2f} -> {self.last:.2f} ({self.gradient:.3g})"


def base() -> dict[str, Any]:
    """The demo's run at the sweep's size, as plain data."""
    raw = configs.read(ROOT / BASE)
    for override in OVERRIDES:
        raw = configs.apply_override(raw, override)
    return raw


def sweep(raw: dict[str, Any], settings: dict[str, Any], depth: int, data: Data) -> Result:
    """Train one model for `STEPS` steps; an error or a number that is not finite ends it."""
    for key, value in {**settings, "model.segments.core.repeat": depth}.items():
        raw = configs.set_value(raw, key, value)
    try:
        run = configs.parse(raw).with_vocabulary(data.tokenizer.vocab_size)
        trainer = Trainer(run, Transformer(run.model, run.seed), data)
        return _train(trainer, data)
    except (ValueError, RuntimeError) as error:  # one bad model must not hide the others
        return Result(error=f"{type(error).__name__}: {str(error).splitlines()[0]}")


def _train(trainer: Trainer, data: Data) -> Result:
    losses, gradients = [], []
    for step, batch in zip(range(1, STEPS + 1), data.train(1), strict=False):
        optim.set_lr(trainer.optimizer, LR * min(1.0, step / 4))
        taken = trainer.stepper.take([batch], step, None)
        losses.append(taken.loss)
        gradients.append(taken.grad_norm)
        if not taken.finite:
            return Result(losses[0], losses[-1], max(gradients), f"not finite at step {step}")
    return Result(losses[0], losses[-1], max(gradients))


def measure(console: Console) -> tuple[dict[str, list[Result]], float]:
    """Every method at every depth, one process a core, a line as each is done; and the CPU seconds."""
    raw, found, total = base(), {}, 0.0
    waiting = tried(raw)
    # Forking a process that has used threads can hang.
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        done = pool.map(all_depths, repeat(raw), waiting.values())
        for name, (results, seconds) in zip(waiting, done, strict=True):
            found[name], total = results, total + seconds
            console.print(f"{name}: {seconds:.0f} s of CPU time", style="dim")
    return found, total


def all_depths(raw: dict[str, Any], method: tuple[dict[str, Any], str]) -> tuple[list[Result], float]:
    """One method at every depth, and the CPU seconds it took."""
    torch.set_num_threads(1)
    (settings, reason), began = method, time.process_time()
    data = open_data(configs.parse(raw).data, 0)
    results = [Result(error=reason) if reason else sweep(raw, settings, d, data) for d in DEPTHS]
    return results, time.process_time() - began


def page(found: dict[str, list[Result]], seconds: float, path: Path) -> str:
    """The dated page."""
    failed = list(failures(found))
    lines = [
        "# Twenty steps at every depth\n",
        f"Measured {datetime.date.today()} with torch {version('torch')}, one CPU thread a model, "
        f"{seconds:.0f} s of CPU time:\n",
        f"```\npython benchmarks/depth_sweep.py {path}\n```\n",
        SETTING,
        "| kind | " + " | ".join(f"{depth} blocks" for depth in DEPTHS) + " |",
        "|---|" + "---|" * len(DEPTHS),
        *(f"| {name} | " + " | ".join(r.cell() for r in results) + " |" for name, results in found.items()),
        "\n## Failures\n",
        *(failed or ["None: every loss and gradient was finite."]),
    ]
    return "\n".join(lines) + "\n"


def failures(found: dict[str, list[Result]]) -> Iterator[str]:
    """A line for everything that went wrong."""
    for name, results in found.items():
        for depth, result in zip(DEPTHS, results, strict=True):
            if result.error:
                yield f"- {name}, {depth} blocks: {result.error}"


def main() -> None:
    """Measure, print, and write the page that was asked for."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 130)
    found, seconds = measure(console)
    table = Table("kind", *(f"{depth} blocks" for depth in DEPTHS), box=None)
    for name, results in found.items():
        table.add_row(name, *(result.cell() for result in results))
    console.print(table, "first loss -> last loss (largest gradient norm)")
    console.print(*(failures(found) or ["no failures"]), sep="\n")
    if len(sys.argv) > 1:
        write_text(Path(sys.argv[1]), page(found, seconds, Path(sys.argv[1])))
    console.print(f"{seconds:.0f} s of CPU time")


if __name__ == "__main__":
    main()
