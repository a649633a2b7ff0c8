"""What `train.py LADDER` does with its options."""

import argparse
from pathlib import Path

import pytest
import yaml

import train
from depthkit import config as c
from depthkit.ladder.command import chosen
from depthkit.ladder.state import RungFiles, State
from tests.ladder.ladders import ladder_dict

ROOT = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(ladder_dict(), sort_keys=False))
    return path


def test_only_takes_rungs_by_pattern(no_pictures, file, tmp_path, capsys):
    words = [
        str(file),
        "--run-dir",
        str(tmp_path / "l"),
        "--only",
        "*lns*seed-1",
        "--only",
        "*plain_depth-1_seed-0",
    ]
    assert train.main(words) == 0
    names = sorted(path.name for path in (tmp_path / "l" / "rungs").iterdir())
    assert names == ["method-lns_depth-1_seed-1", "method-lns_depth-3_seed-1", "method-plain_depth-1_seed-0"]
    assert train.main([str(file), "--run-dir", str(tmp_path / "l"), "--status"]) == 1
    out = capsys.readouterr().out
    assert "5 waiting, 3 finished" in out
    assert "4/4" in out


def test_a_pattern_without_a_rung_is_refused():
    rungs = c.parse(ladder_dict()).rungs()
    with pytest.raises(ValueError, match="did you mean 'method-lns_depth-3_seed-1'"):
        chosen(rungs, ["method-lns_depth-3_sed-1"])
    assert chosen(rungs, None) == rungs


def test_status_tells_states_apart(file, tmp_path, capsys):
    states = {
        "method-lns_depth-1_seed-0": State("diverged", 1, "step 3: ...", "visit 0 (key trunk.0.0)"),
        "method-lns_depth-1_seed-1": State("failed", 2, "no space left"),
        "method-lns_depth-3_seed-0": State("running", 1),
    }
    for name, state in states.items():
        RungFiles(tmp_path / "l", name).write(state)
    assert train.main([str(file), "--run-dir", str(tmp_path / "l"), "--status"]) == 1
    out = capsys.readouterr().out
    assert "visit 0 (key trunk.0.0)" in out
    assert "no space left" in out
    assert "stopped" in out  # nobody holds its lock
    assert not (tmp_path / "l" / "ladder.yaml").exists()


def test_options_of_ladders_are_refused_for_a_run(capsys):
    assert train.main([str(ROOT / "configs" / "quickstart.yaml"), "--status"]) == 2
    assert "--status is for ladders" in capsys.readouterr().err


def test_options_of_runs_are_said_to_have_no_effect(file):
    with pytest.warns(UserWarning, match="--resume has no effect on a ladder"):
        train.execute(train.parser().parse_args([str(file), "--resume", "--status"]))


def test_where_rungs_run_does_not_change_which_ladder_it_is():
    first, second = (c.parse(ladder_dict(launch=place)) for place in ("inline", "local"))
    assert first.fingerprint() == second.fingerprint()
    assert first.fingerprint() != c.parse(ladder_dict(replicate="depth", compare=[])).fingerprint()


def test_dry_run_prints_a_row_a_rung_and_the_time_and_runs_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = argparse.Namespace(dry_run=True, run_dir=None, config=Path("x.yaml"))
    assert c.parse(ladder_dict()).execute(arguments) == 0
    out = capsys.readouterr().out
    assert "8 rungs" in out
    assert out.count("lns") == 4
    assert "CPU minutes" in out
    assert list(tmp_path.iterdir()) == []


def test_help_names_the_options_of_ladders(capsys):
    with pytest.raises(SystemExit):
        train.main(["--help"])
    out = capsys.readouterr().out
    assert all(option in out for option in ("--only", "--status", "--retry"))
