"""The quickstart, killed at seeded moments and resumed, equals the uninterrupted run bit for bit."""

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest

from depthkit import files
from depthkit.training import checkpoint
from tests.training.helpers import digests, losses

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
STEPS = 60
OVERRIDES = (
    f"train.steps={STEPS}",
    "train.checkpoint_every=10",
    "train.eval_every=null",
    "train.eval_tokens=1024",
    "train.threads=1",
    "train.batch_size=4",
)


def work(folder, kill_at_rename_of=None):
    """train.py in a process of its own; on request it dies between writing and renaming one checkpoint."""
    import train as script

    real = files.os.replace

    def replace(source, target):
        if Path(target).name == kill_at_rename_of:
            os.kill(os.getpid(), signal.SIGKILL)
        real(source, target)

    files.os.replace = replace
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os._exit(script.main([str(QUICKSTART), *OVERRIDES, "--run-dir", str(folder), "--resume"]))


@pytest.fixture(scope="module")
def launch():
    """Start `work`; the server has imported everything, so a start costs little."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "depthkit.training.session", "depthkit.ladder.spec"])

    def start(*arguments):
        process = context.Process(target=work, args=arguments)
        process.start()
        return process

    return start


@pytest.fixture(scope="module")
def whole(launch, tmp_path_factory):
    """The uninterrupted run."""
    folder = tmp_path_factory.mktemp("kill") / "whole"
    assert finished(launch(folder)) == 0
    return folder


def finished(process):
    process.join(120)
    return process.exitcode


def wait_for_step(folder, step):
    deadline = time.monotonic() + 60
    path = folder / "metrics.jsonl"
    while not path.exists() or max(losses(folder), default=0) < step:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_killed_and_resumed_equals_uninterrupted(launch, whole, tmp_path):
    folder, moments = tmp_path / "run", random.Random(7)
    for step in (moments.randint(1, 9), moments.randint(12, 25)):
        process = launch(folder)
        wait_for_step(folder, step)
        time.sleep(moments.random() * 0.03)
        process.kill()
        assert finished(process) == -signal.SIGKILL
    process = launch(folder, "step_00000040")
    assert finished(process) == -signal.SIGKILL
    assert list((folder / "checkpoints").glob(".step_00000040.*"))
    assert checkpoint.latest(folder / "checkpoints") == 30
    process = launch(folder, "latest")  # the next checkpoint is complete, but not yet the latest
    assert finished(process) == -signal.SIGKILL
    assert checkpoint.latest(folder / "checkpoints") == 30
    assert checkpoint.steps(folder / "checkpoints") == [10, 20, 30, 40]
    assert finished(launch(folder)) == 0
    assert losses(folder) == losses(whole)
    assert sorted(losses(folder)) == list(range(1, STEPS + 1))
    assert digests(folder, STEPS) == digests(whole, STEPS)
    assert not list(folder.rglob(".*"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_polite_signal_saves_the_step_and_exits_with_128_plus_its_number(
    launch, whole, tmp_path, number, code
):
    folder = tmp_path / "run"
    process = launch(folder)
    wait_for_step(folder, 5)
    os.kill(process.pid, number)
    assert finished(process) == code
    step = max(losses(folder))
    assert checkpoint.latest(folder / "checkpoints") == step < STEPS
    assert finished(launch(folder)) == 0
    assert losses(folder) == losses(whole)
