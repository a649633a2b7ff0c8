"""train.py from the command line."""

import pytest
import yaml

import train as script
from depthkit.training import metrics


@pytest.fixture
def path(mapping, tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(mapping(steps=3)))
    return str(path)


def start(*arguments):
    return script.main([str(argument) for argument in arguments])


def test_a_run_goes_to_runs_under_its_name(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert start(path) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("tiny-")
    assert len(metrics.read(folder / "metrics.jsonl", "train")) == 3


def test_overrides_may_stand_on_both_sides_of_options(path, tmp_path):
    folder = tmp_path / "run"
    assert start(path, "train.steps=2", "--run-dir", folder, "--resume", "train.lr=0.001") == 0
    held = yaml.safe_load((folder / "config.yaml").read_text())
    assert (held["train"]["steps"], held["train"]["lr"]) == (2, 0.001)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.segmnts=1", "did you mean 'segments'"),
        ("model.blocks.dense.mixer.num_heads=3", "num_kv_heads"),
        ("train.steps=many", "train.steps"),
        ("data.corpus.path=/nowhere.npy", "/nowhere.npy"),
        ("train.steps", "write key=value"),
    ],
)
def test_what_a_user_can_mend_is_one_message_and_exit_code_2(path, tmp_path, capsys, override, words):
    override = override.replace("num_heads=3", "num_kv_heads=3")
    assert start(path, override, "--run-dir", tmp_path / "run") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert words in err
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "arguments", [["--rusume"], [], ["x.yaml", "--resume-from", "late"], ["x.yaml", "--dry"]]
)
def test_unknown_arguments_exit_with_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        start(*arguments)
    assert caught.value.code == 2
    assert "usage: train.py" in capsys.readouterr().err


def test_a_setting_without_effect_is_a_warning(path, tmp_path):
    with pytest.warns(UserWarning, match=r"train.eval_every: 9 is more than the run's 3 steps"):
        assert start(path, "train.eval_every=9", "--run-dir", tmp_path / "run") == 0


def test_resume_from_takes_a_step(path, tmp_path, capsys):
    folder = tmp_path / "run"
    assert start(path, "train.checkpoint_every=1", "--run-dir", folder) == 0
    assert start(path, "train.checkpoint_every=1", "--run-dir", folder, "--resume-from", 7) == 2
    assert "no checkpoint of step 7; there are steps 1, 2, 3" in capsys.readouterr().err
    assert start(path, "train.checkpoint_every=1", "--run-dir", folder, "--resume-from", 2) == 0


def test_a_second_start_is_refused(path, tmp_path, capsys):
    assert start(path, "--run-dir", tmp_path / "run") == 0
    assert start(path, "--run-dir", tmp_path / "run") == 2
    assert "continue it with --resume" in capsys.readouterr().err
    assert start(path, "--run-dir", tmp_path / "run", "--resume") == 0
    assert "is finished" in capsys.readouterr().out
