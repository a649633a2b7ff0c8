"""One run from config to summary."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from depthkit.data import open_data
from depthkit.model import Transformer
from depthkit.model.init import stream_seed
from depthkit.training import announce, checkpoint, device, initial, metrics, saving
from depthkit.training.folder import RunFolder
from depthkit.training.parallel.base import Parallel
from depthkit.training.parallel.choose import choose
from depthkit.training.parallel.launch import joined
from depthkit.training.parallel.quiet import QuietRecorder
from depthkit.training.parallel.world import told_once
from depthkit.training.progress import ProgressLine
from depthkit.training.recorder import Recorder
from depthkit.training.run import RunConfig
from depthkit.training.stopping import StopRequest
from depthkit.training.trainer import Trainer

Start = tuple[Path, dict[str, Any]] | None
"""A checkpoint and its state."""


def run_session(config: RunConfig, run_dir: Path, resume: bool | int, quiet: bool) -> dict[str, Any]:
    """See `depthkit.training.run.train`."""
    with told_once():
        chosen = device.choose(config.train.device)
    with joined(chosen) as ranks:
        parallel = choose(config, ranks)
        console = Console(quiet=quiet or not ranks.is_first, highlight=False, soft_wrap=True, markup=False)
        return _session(config, RunFolder(run_dir), resume, parallel, console)


def _session(
    config: RunConfig, folder: RunFolder, resume: bool | int, parallel: Parallel, console: Console
) -> dict[str, Any]:
    """Find out what there is to do, and do it."""
    end, start = parallel.ranks.first(lambda: _standing(config, folder, resume))
    if resume is True and end is not None:
        console.print(f"{folder.path} is finished")
        return _conclude(console, config, folder, end, 0.0)
    gpus = list(range(torch.cuda.device_count()))
    threads = config.train.threads or (start[1]["threads"] if start else None)
    with StopRequest() as stop, torch.random.fork_rng(gpus), device.threads(threads):
        trainer = _make_trainer(config, start, parallel)
        return _run(config, trainer, folder, stop, console)


def _standing(config: RunConfig, folder: RunFolder, resume: bool | int) -> tuple[metrics.Row | None, Start]:
    """Claim the folder; how the run ended, if it has, and where to continue from otherwise."""
    folder.claim(config, resume is not False)
    end = folder.end()
    return end, None if resume is True and end is not None else _find_start(folder, resume)


def _find_start(folder: RunFolder, resume: bool | int) -> Start:
    """The verified checkpoint to continue from and its state; None starts from nothing."""
    fresh = resume is False or (resume is True and not checkpoint.steps(folder.checkpoints))
    if fresh:
        return None
    path = checkpoint.find(folder.path, None if resume is True else resume)
    return path, checkpoint.read_state(path)


def _make_trainer(config: RunConfig, start: Start, parallel: Parallel) -> Trainer:
    """Data, then model and optimiser, at their beginning or where the checkpoint left them."""
    chosen = device.choose(config.train.device)
    torch.manual_seed(stream_seed(config.seed, "global"))
    # The first rank fills caches.
    data = parallel.ranks.first_then_all(lambda: open_data(config.data, config.seed))
    if start is not None:
        saving.check_tokenizer(start[1]["tokenizer"], data.tokenizer.fingerprint, start[0])
    full = config.with_vocabulary(data.tokenizer.vocab_size)
    model = Transformer(full.model, seed=config.seed).to(chosen)
    if start is None and config.train.init_from is not None:
        initial.load(model, config.train.init_from, data.tokenizer.fingerprint)
    if config.train.compile:
        model.compile_blocks()
    trainer = Trainer(full, model, data, parallel)
    if start is not None:
        saving.restore(trainer, *start)
    return trainer


def _run(
    config: RunConfig, trainer: Trainer, folder: RunFolder, stop: StopRequest, console: Console
) -> dict[str, Any]:
    """Fill the run folder, train, and conclude."""
    began = time.monotonic()
    facts = {"device": device.name(trainer.device), "threads": torch.get_num_threads()}
    ranks = trainer.ranks
    ranks.first(lambda: _fill(config, trainer, folder, facts))
    recorder = Recorder(folder, trainer.step) if ranks.is_first else QuietRecorder(folder)
    try:
        recorder.event("resume" if trainer.step else "start", trainer.step, **facts)
        console.print(announce.beginning(trainer, folder.path))
        with ProgressLine(trainer.total, trainer.step, console) as progress:
            trainer.fit(recorder, progress, stop)
        row = ranks.first(lambda: _last_row(trainer, folder, recorder, stop))
    finally:
        trainer.parallel.checkpoints.close()
        recorder.close()
    return _conclude(console, config, folder, row, time.monotonic() - began)


def _fill(config: RunConfig, trainer: Trainer, folder: RunFolder, facts: dict[str, Any]) -> None:
    """Make the run folder tell about this run, and about nothing past the step it starts from."""
    with folder.writing("the run folder"):
        folder.clean()
        layout = {"parallel": trainer.parallel.layout.facts()}
        folder.describe(config, trainer.model.plan, facts | layout)
        if trainer.step and checkpoint.latest(folder.checkpoints) != trainer.step:
            checkpoint.set_latest(folder.checkpoints, trainer.step)


def _last_row(
    trainer: Trainer, folder: RunFolder, recorder: Recorder | QuietRecorder, stop: StopRequest
) -> metrics.Row:
    """Write and return the row that says how the run ended."""
    if trainer.step < trainer.total:
        assert stop.signal is not None
        return recorder.event("stop", trainer.step, train_loss=trainer.last_loss, signal=stop.signal.name)
    held_out = metrics.read(folder.metrics, "validation")[-1]
    return recorder.event(
        "end",
        trainer.step,
        train_loss=trainer.last_loss,
        val_loss=held_out["val_loss"],
        bits_per_byte=held_out["bits_per_byte"],
        accuracy_by_hops=held_out.get("accuracy_by_hops"),
        unigram_entropy=trainer.data.unigram_entropy(),
    )


def _conclude(
    console: Console, config: RunConfig, folder: RunFolder, row: metrics.Row, seconds: float
) -> dict[str, Any]:
    console.print(announce.ending(config, folder.path, row))
    names = ("step", "train_loss", "val_loss", "bits_per_byte", "unigram_entropy")
    return {
        "run_dir": str(folder.path),
        **{name: row.get(name) for name in names},
        "seconds": round(seconds, 2),
        "stopped": row.get("signal"),
    }
