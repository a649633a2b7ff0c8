"""Locks and states: nobody runs a rung twice, and nobody who died stands in the way."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from filelock import Timeout
from rich.console import Console

from depthkit import config as c
from depthkit.ladder.launch import Climb
from depthkit.ladder.rung import Task, run_rung
from depthkit.ladder.state import ELSEWHERE, FINISHED, RUNNING, STOPPED, WAITING, RungFiles, State
from tests.ladder.ladders import ladder_dict

HOLD = """
import sys, time
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def one(tmp_path):
    ladder = c.parse(ladder_dict(axes={"seed": [0]}, compare=[]))
    (rung,) = ladder.rungs()
    return ladder, rung, RungFiles(tmp_path, rung.name), tmp_path


def test_a_rung_is_held_by_one_at_a_time(one):
    _, _, files, _ = one
    assert not files.locked()
    with files.lock():
        assert files.locked()
        with pytest.raises(Timeout), files.lock():
            pass
    assert not files.locked()


def test_a_killed_holder_does_not_block(one):
    _, _, files, folder = one
    with files.lock():
        files.write(State().begun())
    path = folder / "locks" / f"{files.name}.lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    assert files.locked()
    assert files.state().state == RUNNING
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    assert not files.locked()
    assert files.state().state == STOPPED


def test_a_rung_that_someone_else_runs_is_left_to_them(one):
    ladder, rung, files, folder = one
    with files.lock():
        assert run_rung(Task(rung, folder, ladder.evaluate)).state == ELSEWHERE
    assert files.state().state == WAITING
    assert not files.run.exists()


@pytest.mark.parametrize("finishes", [True, False])
def test_a_launcher_waits_for_the_other_and_takes_over_what_that_leaves(one, finishes):
    ladder, rung, files, folder = one
    entered, leave = threading.Event(), threading.Event()

    def other():
        with files.lock():
            entered.set()
            leave.wait(20)
            files.write(State(FINISHED) if finishes else State().begun())

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(20)
    launch = Climb(ladder, folder, [rung], Console(quiet=True))
    threading.Timer(0.3, leave.set).start()
    launch.all(retry=False)
    thread.join()
    assert files.state().state == FINISHED
    assert (files.run / "report.json").exists() is not finishes


def test_only_one_of_two_launchers_runs_a_rung(one):
    """Both start at once; the one that comes second finds it done."""
    ladder, rung, files, folder = one
    task, ran = Task(rung, folder, ladder.evaluate), []

    def launch():
        state = run_rung(task)
        while state.state == ELSEWHERE:
            time.sleep(0.05)
            state = run_rung(task)
        ran.append(state)

    threads = [threading.Thread(target=launch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [state.state for state in ran] == [FINISHED] * 2
    assert files.state().attempts == 1
    assert sum('"event": "start"' in line for line in files.metrics.read_text().splitlines()) == 1
