"""The scripts' quick modes, whole: every part runs, and results are stored."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import depth_scaling, overhead
from depthkit.model.registries import REGULATORS

ROOT = Path(__file__).parents[2]
ARGUMENTS = {
    "train_step": ("--only", "dim256", "--rounds", "1"),
    "overhead": ("--rounds", "1"),
    "depth_scaling": ("--rounds", "1"),
    "moe": ("--only", "8", "--rounds", "1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("script", ARGUMENTS)
def test_quick_mode_runs(script, tmp_path):
    path = tmp_path / "found.json"
    run = [sys.executable, "-m", f"benchmarks.{script}", "--quick", "--json", path, *ARGUMENTS[script]]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    assert found["quick"]
    assert found["tables"]
    assert found["measurements"]
    assert all(isinstance(goal["value"], float | None) for goal in found["goals"])
    # What is measured this small is noise and can even be negative; that it is measured is what counts.
    assert any(goal["value"] for goal in found["goals"])


def test_every_regulator_can_be_timed():
    found = overhead.measure_regulators(REGULATORS.names(), depth=1, rounds=1)
    assert list(found) == REGULATORS.names()
    assert all(set(times) == {"plain", kind} for kind, times in found.items())


def test_a_model_is_measured_and_its_checkpoint_is_as_large_as_its_tensors(monkeypatch):
    monkeypatch.setattr(depth_scaling, "SHAPE", depth_scaling.SHAPE.at(batch=1, length=8))
    found = depth_scaling.measure_size(1, "none", rounds=1)
    model = depth_scaling.Ours(depth_scaling.SHAPE.at(depth=1))
    assert found["checkpoint_mib"] == pytest.approx(12 * model.num_parameters / 2**20, rel=0.01)
    assert found["memory"] > found["activations"]
    assert set(depth_scaling.measure_size(1, "block", rounds=1)) < set(found)


def test_a_cost_that_grows_with_the_square_of_depth_misses_its_goal():
    rows = [{"depth": depth, "good": 1 + depth, "bad": depth**2} for depth in depth_scaling.DEPTHS]
    assert depth_scaling.linear("", rows, "good").met
    assert not depth_scaling.linear("", rows, "bad").met


def test_make_bench_asks_the_scripts_for_what_they_take():
    done = subprocess.run(["make", "-n", "bench"], cwd=ROOT, capture_output=True, text=True, check=True)
    calls = [line.split() for line in done.stdout.splitlines() if " --" in line and "_bench_" in line]
    assert len(calls) >= len(ARGUMENTS)
    for call in calls:
        script = call[call.index("-m") + 1].removeprefix("benchmarks.")
        assert (ROOT / "benchmarks" / f"{script}.py").exists()
        assert call[-2] == "--json"
        assert call[-1].endswith(f"_bench_{script}.json")
