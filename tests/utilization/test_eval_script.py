"""`python eval.py`: from a trained run to its report, and what it says when something is wrong."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from depthkit import config
from tests.models import model_dict
from tests.texts import verses

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of four steps with checkpoints at 2 and 4."""
    from depthkit.training.run import train

    folder = tmp_path_factory.mktemp("runs")
    corpus = verses(folder, 400)
    data = {"corpus": corpus, "sequence_length": 16, "cache": str(folder / "cache")}
    steps = {"steps": 4, "batch_size": 4, "lr": 1e-3, "checkpoint_every": 2, "device": "cpu"}
    document = {"model": model_dict(depth=3, vocab=None), "data": data, "train": steps}
    train(config.parse(document), folder / "tiny", quiet=True)
    return folder / "tiny"


def test_last_checkpoint(script, run, capsys):
    assert script.main([str(run), "sequences=5", "plots=false", "html=false"]) == 0
    report = json.loads((run / "report.json").read_text())
    assert report["model"]["name"] == "tiny"
    assert report["model"]["step"] == 4
    assert report["data"]["n_seq"] == 5
    assert report["data"]["seq_len"] == 16
    assert report["timing"]["layer_evals"] == 6
    out = capsys.readouterr().out
    assert "tiny: 3 layers, counted from 0" in out
    assert "report.json" in out
    assert "step 4: 12 layer evaluations" in out
    assert "6 layer evaluations, 6 more for random_init." in " ".join(out.split())
    assert list(report["null"]) == ["random_init"]
    assert report["null"]["random_init"]["baseline"]["loss_nats"] > report["baseline"]["loss_nats"]


def test_loss_is_the_held_out_loss_of_those_windows(script, run, tmp_path):
    """All held-out windows: the same number that the run wrote down."""
    words = [str(run), "sequences=100000", "probes=[stream]", "plots=false", "html=false", f"out={tmp_path}"]
    assert script.main(words) == 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (wanted,) = [row for row in rows if row["event"] == "validation"][-1:]
    found = json.loads((tmp_path / "report.json").read_text())["baseline"]
    assert found["loss_nats"] == pytest.approx(wanted["val_loss"], rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(wanted["bits_per_byte"], rel=1e-5)


def test_all_checkpoints(script, run, tmp_path, capsys):
    words = [
        str(run),
        "checkpoints=all",
        "sequences=3",
        "probes=[ablation, lens]",
        "html=false",
        f"out={tmp_path}",
    ]
    assert script.main(words) == 0
    table = json.loads((tmp_path / "utilization_over_training.json").read_text())
    assert [row["step"] for row in table["checkpoints"]] == [2, 4]
    assert (tmp_path / "reports" / "step_00000002" / "report.json").is_file()
    assert (tmp_path / "utilization_over_training.png").is_file()
    assert "utilization over training" in capsys.readouterr().out


def test_nothing_beside_all_checkpoints_or_when_told(script, run, tmp_path):
    quick = [str(run), "sequences=2", "probes=[stream]", "plots=false", "html=false", f"out={tmp_path}"]
    assert script.main([*quick, "checkpoints=all"]) == 0
    assert json.loads((tmp_path / "report.json").read_text())["null"] == {}
    assert script.main([*quick, "null=none"]) == 0
    assert json.loads((tmp_path / "report.json").read_text())["null"] == {}


def test_a_preset_has_its_own_sample(script, run, tmp_path):
    for preset, count in (("states", 32), ("paper:lns", 32), ("quick", 16)):
        words = [str(run), f"preset={preset}", "null=none", "plots=false", "html=false", f"out={tmp_path}"]
        assert script.main(words) == 0
        data = json.loads((tmp_path / "report.json").read_text())["data"]
        assert (data["n_seq"], data["seq_len"]) == (
            count,
            16,
        )  # the run's windows are shorter than a preset's


def test_one_checkpoint_leaves_the_checkpoint_folder_alone(script, run):
    checkpoint = run / "checkpoints" / "step_00000002"
    before = sorted(checkpoint.iterdir())
    quick = ["sequences=2", "probes=[stream]", "plots=false", "html=false"]
    assert script.main([str(checkpoint), *quick]) == 0
    assert sorted(checkpoint.iterdir()) == before
    report = json.loads((run / "reports" / "step_00000002" / "report.json").read_text())
    assert report["model"]["step"] == 2


def test_compare(script, run, tmp_path, capsys):
    quick = ["sequences=4", "probes=[ablation]", "plots=false", "html=false"]
    for step in (2, 4):
        target = run / "checkpoints" / f"step_{step:08d}"
        assert script.main([str(target), *quick, f"out={tmp_path / str(step)}"]) == 0
    words = ["compare", str(tmp_path / "2"), str(tmp_path / "4" / "report.json"), f"out={tmp_path / 'both'}"]
    assert script.main([*words, "plots=false"]) == 0
    assert (tmp_path / "both" / "compare.html").is_file()
    assert "tiny (step 2)" in capsys.readouterr().out


def test_unlike_data_exit_2(script, run, tmp_path, capsys):
    quick = [str(run), "probes=[stream]", "plots=false", "html=false"]
    for seed in (0, 1):
        assert script.main([*quick, "sequences=4", f"seed={seed}", f"out={tmp_path / str(seed)}"]) == 0
    assert script.main(["compare", str(tmp_path / "0"), str(tmp_path / "1")]) == 2
    assert "token ids differ" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seqences=3"], "did you mean 'sequences'"),
        (["sequences=0"], "greater than or equal to 1"),
        (["sequences"], "write key=value"),
        (["preset=quik"], "did you mean 'quick'"),
        (["probes=[ablaton]"], "did you mean 'ablation'"),
        (["probes=[{kind: lens, max_logit: 3}]"], "did you mean 'max_logits'"),
        (["checkpoints=some"], "'last' or 'all'"),
        (["null=randm_init"], "did you mean 'random_init'"),
        (["preset=paper:cordas"], "did you mean 'paper:csordas'"),
        (["drop=[1]"], "first: python -m depthkit export"),
    ],
)
def test_mistakes_exit_2(script, run, words, message, capsys):
    assert script.main([str(run), *words]) == 2
    assert message in capsys.readouterr().err


def test_no_run_there(script, tmp_path, capsys):
    assert script.main([str(tmp_path / "nowhere")]) == 2
    assert "no such run or checkpoint folder" in capsys.readouterr().err
    assert script.main([str(tmp_path)]) == 2
    assert "no checkpoint" in capsys.readouterr().err
    assert script.main(["compare", str(tmp_path), str(tmp_path)]) == 2
    assert "no report there" in capsys.readouterr().err


def test_all_of_one_checkpoint_is_refused(script, run, capsys):
    assert script.main([str(run / "checkpoints" / "step_00000002"), "checkpoints=all"]) == 2
    assert "give the run folder" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_named(script, run, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    model = copy / "checkpoints" / "step_00000004" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1] + b"x")
    assert script.main([str(copy)]) == 2
    assert "model.safetensors" in capsys.readouterr().err


def test_another_tokenizer_is_refused(script, run, tmp_path, capsys, monkeypatch):
    from depthkit.training import checkpoint

    real = checkpoint.load
    monkeypatch.setattr(checkpoint, "load", lambda path: changed(real(path)))

    def changed(loaded):
        object.__setattr__(loaded, "tokenizer", "0" * 64)
        return loaded

    assert script.main([str(run)]) == 2
    assert "another tokenizer" in capsys.readouterr().err


def test_help_is_quick_and_lists_the_settings():
    code = (
        "import sys, runpy\nsys.argv = ['eval.py', '--help']\n"
        "try:\n    runpy.run_path('eval.py', run_name='__main__')\n"
        "except SystemExit: pass\nprint({'torch', 'datasets', 'plotly', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("set()\n")
    assert "batch_tokens=1024" in done.stdout
