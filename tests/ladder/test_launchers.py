"""Places where rungs run: processes that die, jobs of submitit, and a Slurm that is not there."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from depthkit import config as c
from depthkit.ladder.launch import Climb, climb
from depthkit.ladder.launchers.local import Local
from depthkit.ladder.registries import LAUNCHERS
from depthkit.ladder.rung import Task, run_rung
from depthkit.ladder.state import FAILED, FINISHED, RungFiles
from tests.ladder.ladders import ladder_dict

ROOT = Path(__file__).parents[2]
TWO = {"axes": {"seed": [0, 1]}, "compare": []}
SUBMITIT = pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None, reason="submitit is not installed"
)


def settings(kind, **more):
    return LAUNCHERS.get(kind).Config.model_validate({"kind": kind, **more})


def states(ladder, folder):
    return {rung.name: RungFiles(folder, rung.name).state() for rung in ladder.rungs()}


def losses(folder):
    """Every training loss of every rung, exactly."""
    found = {}
    for file in sorted((folder / "rungs").glob("*/metrics.jsonl")):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        found[file.parent.name] = [(r["step"], r["loss"]) for r in rows if r["event"] == "train"]
        found[file.parent.name] += [r["val_loss"] for r in rows if r["event"] == "end"]
    return found


def test_cores_are_shared_out_among_processes(monkeypatch, tmp_path):
    monkeypatch.setattr("depthkit.ladder.launchers.local._cores", lambda: 8)
    for more, expected in [({}, (8, 1)), ({"workers": 3}, (3, 2)), ({"workers": 2, "threads": 1}, (2, 1))]:
        launcher = Local(settings("local", **more), tmp_path)
        assert (launcher.capacity, launcher.threads) == expected


@SUBMITIT
def test_slurm_that_is_not_there_is_said_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    ladder = c.parse(ladder_dict(**TWO, launch="slurm"))
    with pytest.raises(ValueError, match=r"there is no sbatch here: .* or use launch=local"):
        climb(ladder, tmp_path / "l")
    assert not (tmp_path / "l").exists()


def test_submitit_that_is_not_there_is_said_too(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'depthkit\[slurm\]'"):
        settings("slurm").check()


@SUBMITIT
def test_a_setting_that_submitit_does_not_know_is_refused(tmp_path):
    config = settings("slurm", cluster="local", options={"acount": "lab"})
    with pytest.raises(ValueError, match=r"launch\.options: .*acount"):
        config.component(config, tmp_path)


@SUBMITIT
def test_a_job_that_is_put_back_runs_the_same_rung_again(tmp_path):
    from depthkit.ladder.launchers.slurm import Resumable

    again = Resumable(len).checkpoint("four")
    assert again.result() == 4


@SUBMITIT
def test_jobs_of_an_earlier_launcher_that_still_live_are_followed_not_sent_again(tmp_path, monkeypatch):
    from types import SimpleNamespace

    from depthkit.ladder.launchers.slurm import Slurm

    def job(number):
        return SimpleNamespace(job_id=f"7_{number}", done=lambda: False)

    ladder = c.parse(ladder_dict(**TWO))
    tasks = [Task(rung, tmp_path, ladder.evaluate) for rung in ladder.rungs()]
    sent = []
    monkeypatch.setattr(Slurm, "_send", lambda self, fresh: [sent.append(t) or job(len(sent)) for t in fresh])
    config = settings("slurm", cluster="local")
    Slurm(config, tmp_path).submit(tasks[:1])
    monkeypatch.setattr(Slurm, "_alive", lambda self, job_id: job_id and job(job_id[-1]))
    first, second = Slurm(config, tmp_path).submit(tasks)
    assert [task.rung.name for task in sent] == ["seed-0", "seed-1"]
    assert first.poll() is second.poll() is None
    assert json.loads((tmp_path / "jobs" / "sent.json").read_text()) == {"seed-0": "7_1", "seed-1": "7_2"}


def crash(task):
    """Seed 0 dies as a process does that runs out of memory."""
    if task.rung.place["seed"] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return run_rung(task)


def stumble(task):
    """Seed 0 meets an error that nobody expects."""
    if task.rung.place["seed"] == 0:
        raise KeyError("a bug")
    return run_rung(task)


@pytest.mark.slow
@pytest.mark.parametrize(("job", "reason"), [(crash, "process died"), (stumble, "KeyError: 'a bug'")])
def test_a_rung_that_crashes_is_named_and_leaves_the_others_finished(tmp_path, job, reason):
    ladder = c.parse(ladder_dict(**TWO, launch={"kind": "local", "workers": 1}))
    launch = Climb(ladder, tmp_path, ladder.rungs(), Console(quiet=True))
    launch.launcher.job = job
    launch.all(retry=False)
    found = states(ladder, tmp_path)
    assert {name: state.state for name, state in found.items()} == {"seed-0": FAILED, "seed-1": FINISHED}
    assert reason in found["seed-0"].error
    assert climb(ladder, tmp_path) == 1
    assert reason in json.loads((tmp_path / "summary.json").read_text())["unfinished"]["seed-0"]


@pytest.mark.slow
@SUBMITIT
def test_submitit_and_processes_of_our_own_give_the_same_losses_bit_for_bit(tmp_path):
    run = ladder_dict()["run"]
    run["train"]["threads"] = None
    for name, place in {
        "own": {"kind": "local", "workers": 2, "threads": 1},
        "submitit": {"kind": "slurm", "cluster": "local", "cpus": 1},
        "inline": {"kind": "inline"},
    }.items():
        assert climb(c.parse(ladder_dict(**TWO, run=run, launch=place)), tmp_path / name) == 0
    assert losses(tmp_path / "own") == losses(tmp_path / "submitit")
    assert losses(tmp_path / "own") == losses(tmp_path / "inline")  # this process has one thread too


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_launcher_that_is_killed_is_started_again_and_finishes_what_is_missing(tmp_path, how):
    """The losses are those of a ladder that nobody disturbed, and no process of the first start is left."""
    raw = ladder_dict(**TWO, launch={"kind": "local", "workers": 2, "threads": 1})
    raw["run"]["train"] |= {"steps": 400, "checkpoint_every": 20}
    file, folder = tmp_path / "l.yaml", tmp_path / "l"
    file.write_text(yaml.safe_dump(raw, sort_keys=False))
    words = [sys.executable, "train.py", str(file), "--run-dir", str(folder)]
    started = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL)
    latest = folder / "rungs" / "seed-0" / "checkpoints" / "step_00000020"
    while not latest.exists():
        assert started.poll() is None
        time.sleep(0.1)
    started.send_signal(how)
    started.wait()
    ladder = c.parse(raw)
    while any(RungFiles(folder, rung.name).locked() for rung in ladder.rungs()):
        time.sleep(0.1)  # workers without a launcher save and leave
    assert FINISHED not in {state.state for state in states(ladder, folder).values()}
    assert climb(ladder, folder) == 0
    assert climb(c.parse({**raw, "launch": "inline"}), tmp_path / "undisturbed") == 0
    assert losses(folder) == losses(tmp_path / "undisturbed")
