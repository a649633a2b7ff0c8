"""A run goes on among any number of processes, stops together, and fails together."""

import contextlib
import io
import signal
from pathlib import Path

import pytest
import torch

from depthkit import cli
from depthkit import config as configs
from depthkit.training import checkpoint
from depthkit.training.parallel.quiet import QuietRecorder
from depthkit.training.recorder import Recorder
from depthkit.training.run import train
from tests.training.helpers import losses
from tests.training.parallel.cases import DDP, FSDP, MODELS
from tests.training.parallel.processes import spread

STEPS = 6
COMMON = {"steps": STEPS, "checkpoint_every": 100, "optimizer": {"kind": "adamw", "eps": 1e-4}}
EXPERTS = {**FSDP, "expert": 2}


@contextlib.contextmanager
def failing(recorder, step, act):
    """Act when a recorder of this process is given the row of `step`."""
    real = recorder.train

    def train_row(self, at, **values):
        if at == step:
            act()
        return real(self, at, **values)

    recorder.train = train_row
    try:
        yield
    finally:
        recorder.train = real


def stopped(raw, parallel, folder, step, recorder=Recorder):
    """Go on until a signal reaches one of the processes during `step`."""
    with failing(recorder, step, lambda: signal.raise_signal(signal.SIGTERM)):
        found = train(configs.parse({**raw, "parallel": parallel}), folder, resume=True, quiet=True)
    return found["step"], found["stopped"]


def refused(raw, parallel, folder):
    """Exit code and what is said."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = cli.run(lambda: train(configs.parse({**raw, "parallel": parallel}), folder) and None)
    return code, said.getvalue()


def full_disk():
    raise OSError(28, "No space left on device", "metrics.jsonl")


def on_ranks(raw, odd, folder):
    folder = Path(folder)
    found = {
        # A signal to the second process, then to the first: both stop both.
        "fsdp": stopped(raw, FSDP, folder / "run", 2, QuietRecorder),
        "ddp": stopped(raw, DDP, folder / "run", 3),
        "experts": stopped(raw, EXPERTS, folder / "run", 4),
        "again": stopped(raw, FSDP, folder / "run", 5),
        "part": stopped(raw, FSDP, folder / "parts", 3),
        "odd": refused(odd, FSDP, folder / "odd"),
        "sizes": refused(raw, {**FSDP, "replicate": 3}, folder / "sizes"),
    }
    for name in ("parts", "whole"):
        train(configs.parse({**raw, "parallel": FSDP}), folder / name, resume=True, quiet=True)
    # The last one: the process that meets a full disk leaves, the other one finds out.
    with failing(Recorder, 2, full_disk):
        found["disk"] = refused(raw, FSDP, folder / "disk")
    return found


def test_runs_go_on_stop_and_fail_together(mapping, tmp_path):
    raw, odd = (mapping(model=MODELS["looped"], **COMMON, batch_size=size) for size in (4, 3))
    train(configs.parse(raw), tmp_path / "one", quiet=True)
    assert stopped(raw, {}, tmp_path / "run", 1) == (1, "SIGTERM")
    ranks = spread(on_ranks, raw, odd, str(tmp_path), folder=tmp_path)
    for rank in ranks:
        assert [rank[name] for name in ("fsdp", "ddp", "experts", "again")] == [
            (step, "SIGTERM") for step in (2, 3, 4, 5)
        ]
        assert [rank[name][0] for name in ("odd", "sizes", "disk")] == [2, 2, 2]
    for name, words in {
        "odd": "train.batch_size: 3 cannot be divided among 2 processes; use a multiple of 2, such as 2",
        "sizes": "parallel: replicate 3 x shard 1 is 3, but torchrun started 2 processes",
        "disk": "metrics.jsonl",
    }.items():
        said = "".join(rank[name][1] for rank in ranks)
        assert said.count("error") == 1
        assert words in said
    train(configs.parse(raw), tmp_path / "run", resume=True, quiet=True)
    expected = losses(tmp_path / "one")
    assert losses(tmp_path / "run") == pytest.approx(expected, rel=1e-5)
    assert losses(tmp_path / "whole") == pytest.approx(expected, rel=1e-5)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    parts, whole, run, one = (
        checkpoint.load(tmp_path / name).model.state_dict() for name in ("parts", "whole", "run", "one")
    )
    assert all(torch.equal(parts[name], whole[name]) for name in whole)
    assert all((run[name] - one[name]).abs().max() < 1e-5 for name in one)
    assert not list(tmp_path.glob("*/checkpoints/.*"))
