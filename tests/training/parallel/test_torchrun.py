"""The command line under torchrun."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from depthkit import config as configs
from depthkit.training.run import train
from tests.training.helpers import losses
from tests.training.parallel.cases import MODELS

ROOT = Path(__file__).parents[3]


@pytest.fixture
def start(tmp_path):
    """Start train.py in two processes."""
    started = []

    def launch(raw, *options, restarts=0):
        path = tmp_path / "tiny.yaml"
        path.write_text(yaml.safe_dump(raw))
        run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
        command = [*run, f"--max-restarts={restarts}", "train.py", str(path), *options]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        started.append(process)
        return process

    yield launch
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_torchrun_gives_the_losses_of_one_process(start, mapping, tmp_path):
    raw = mapping(model=MODELS["dense"], steps=2)
    train(configs.parse(raw), tmp_path / "one", quiet=True)
    process = start(raw, "parallel.data=fsdp", "train.device=cpu", "--run-dir", str(tmp_path / "two"))
    out, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    assert out.count("held-out loss") == 2  # by the first process alone: at the end of training, and of all
    facts = json.loads((tmp_path / "two" / "environment.json").read_text())["parallel"]
    assert facts == {"kind": "fsdp", "world": 2, "replicate": 1, "shard": 2, "expert": 1}


@pytest.mark.slow
@pytest.mark.parametrize("data", ["ddp", "fsdp"])
def test_a_process_that_is_killed_is_started_again_and_goes_on(start, mapping, tmp_path, data):
    raw = mapping(model=MODELS["looped"], steps=60, checkpoint_every=5)
    train(configs.parse(raw), tmp_path / "one", quiet=True)
    folder = tmp_path / "two"
    process = start(raw, f"parallel.data={data}", "--run-dir", str(folder), restarts=1)
    deadline = time.monotonic() + 240
    while not (folder / "checkpoints" / "step_00000010").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    workers = [p for p in psutil.Process(process.pid).children(recursive=True) if "train.py" in p.cmdline()]
    workers[-1].kill()
    _, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    assert losses(folder, "resume", "step").keys() <= set(range(10, 60))
    assert losses(folder, "resume", "step")
    assert losses(folder) == pytest.approx(losses(tmp_path / "one"), rel=1e-4)


@pytest.mark.slow
def test_a_config_that_cannot_be_is_refused_once(start, mapping):
    process = start(mapping(batch_size=3), "parallel.data=ddp")
    _, error = process.communicate(timeout=240)
    assert process.returncode != 0
    assert error.count("error: train.batch_size: 3 cannot be divided among 2 processes") == 1
