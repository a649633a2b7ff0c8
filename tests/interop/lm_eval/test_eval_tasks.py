"""`python eval.py TARGET tasks=[...]`: results in the report, what cannot be asked, and what is refused."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from depthkit.interop import hf_tokenizer, smollm2
from depthkit.utilization.options import EvalOptions
from tests.interop.helpers import write_run
from tests.texts import verses

ROOT = Path(__file__).parents[3]
QUICK = ["sequences=2", "plots=false", "html=false"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on bytes that was never trained."""
    folder = tmp_path_factory.mktemp("runs")
    corpus = verses(folder, 40)
    write_run(
        folder / "tiny", {"corpus": corpus, "sequence_length": 64, "cache": str(folder / "cache")}, depth=3
    )
    return folder / "tiny"


@pytest.fixture
def without_wordnet(monkeypatch, tmp_path):
    from depthkit.interop.lm_eval import wordnet

    for name in ("WNSEARCHDIR", "WNHOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(wordnet, "DEBIAN", tmp_path)


def read(folder):
    return json.loads((folder / "report.json").read_text())


def needs_lm_eval():
    pytest.importorskip("lm_eval", reason="needs the extra tasks: pip install 'depthkit[tasks]'")


def test_a_run(script, run, capsys, without_wordnet):
    needs_lm_eval()
    words = [str(run), "tasks=[agreement, definition]", "tasks_limit=8", "skip=[0,2]", *QUICK, "html=true"]
    assert script.main(words) == 0
    assert not (run / "report.json").exists()  # a report of layers would stay
    report = read(run / "tasks")
    tasks, found = report["tasks"], report["tasks"]["results"]["agreement"]
    assert (tasks["adapter"], tasks["bos"], tasks["limit"], tasks["skip"]) == ("depthkit", 256, 8, [0, 2])
    assert (found["metric"], found["n"], found["chance"], found["version"]) == ("acc", 8, 0.5, 1)
    assert found["metrics"]["acc"] == {"value": found["accuracy"], "stderr": found["stderr"]}
    without = found["skipped"]
    assert without["difference"]["value"] == pytest.approx(without["accuracy"] - found["accuracy"])
    assert without["difference"]["low"] <= without["difference"]["value"] <= without["difference"]["high"]
    assert "apt-get install wordnet-base" in tasks["unavailable"]["definition"]
    assert report["null"] == {}
    page, shown = (run / "tasks" / "report.html").read_text(), capsys.readouterr().out
    assert "Not asked: definition" in page
    assert "without 0, 2" in page
    assert "Not asked: definition" in shown
    assert "agreement" in shown


def test_the_report_is_there_when_nobody_reads_the_table(script, run, tmp_path, monkeypatch):
    needs_lm_eval()

    def gone(*args):
        raise BrokenPipeError

    monkeypatch.setattr("depthkit.utilization.report.tasks.print_tasks", gone)
    assert script.main([str(run), "tasks=[agreement]", "tasks_limit=2", *QUICK, f"out={tmp_path}"]) == 0
    assert json.loads((tmp_path / "report.json").read_text())["tasks"]["results"]["agreement"]["n"] == 2


def test_accuracy_by_skipped_visit(script, run, tmp_path):
    needs_lm_eval()
    words = [str(run), "tasks=[agreement]", "tasks_limit=6", "probes=[task_drop]", "null=none"]
    assert script.main([*words, *QUICK, f"out={tmp_path}"]) == 0
    report = read(tmp_path)
    asked = report["tasks"]["results"]["agreement"]["accuracy"]
    assert report["scalars"]["task_accuracy"]["value"] == pytest.approx(asked)
    drops = [row["task_accuracy_drop.skip"] for row in report["per_visit"]]
    assert script.main([*words, *QUICK, f"out={tmp_path}", "skip=1"]) == 0
    change = read(tmp_path)["tasks"]["results"]["agreement"]["skipped"]["difference"]
    assert change["value"] == pytest.approx(-drops[1])


def test_a_pretrained_model_and_solved_examples(script, tmp_path):
    needs_lm_eval()
    from depthkit.data.tokenizers.bytes import ByteTokenizer
    from tests.utilization.families import family

    folder, made = tmp_path / "llama", ByteTokenizer(ByteTokenizer.Config(), None, None)
    family("llama", vocab_size=257).save_pretrained(folder)
    hf_tokenizer.save(made, ByteTokenizer.Config(), folder, 256)
    text = tmp_path / "text.txt"
    text.write_text("In the beginning was the word. " * 40)
    words = [str(folder), "tasks=agreement", "tasks_limit=4", "tasks_fewshot=1", f"data={text}", *QUICK]
    assert script.main([*words, "sequence_length=16", f"out={tmp_path / 'out'}"]) == 0
    tasks = read(tmp_path / "out")["tasks"]
    assert tasks["adapter"].endswith("HFLM")
    assert (tasks["bos"], tasks["results"]["agreement"]["num_fewshot"]) == (256, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tasks=[agreemnt]"], "did you mean 'agreement'? Allowed: agreement, definition, and "),
        (["tasks=[definition]"], "none could be asked: definition: no WordNet files"),
        (["tasks=[agreement]", "skip=[7]"], "skip: [7], but tiny has visits 0 to 2"),
    ],
)
def test_what_cannot_be_asked_exits_2(script, run, words, message, capsys, without_wordnet, monkeypatch):
    needs_lm_eval()
    from lm_eval import tasks

    real = tasks.TaskManager
    own = lambda include_defaults: real(include_defaults=False)  # noqa: E731  reading lm-eval's takes seconds
    monkeypatch.setattr(tasks, "TaskManager", own)
    assert script.main([str(run), *words, *QUICK]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["skip=[1]"], "skip: is for tasks"),
        (["tasks=[agreement]", "skip=[1,1]"], "each once"),
        (["tasks=[agreement,agreement]"], "tasks: name each once"),
        (["tasks=[agreement]", "tasks_limit=0"], "greater than or equal to 1"),
        (["tasks_limt=3"], "did you mean 'tasks_limit'"),
    ],
)
def test_mistakes_exit_2(script, run, words, message, capsys):
    assert script.main([str(run), *words]) == 2
    assert message in capsys.readouterr().err


def test_without_the_library(script, run, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert script.main([str(run), "tasks=[agreement]"]) == 2
    assert "pip install 'depthkit[tasks]'" in capsys.readouterr().err


def test_tasks_alone_come_with_the_loss_alone():
    alone, beside = EvalOptions(tasks=["agreement"]), EvalOptions(tasks=["agreement"], preset="quick")
    assert (alone.preset, alone.sequences, alone.only_tasks) == ("baseline", 4, True)
    assert (beside.preset, beside.sequences, beside.only_tasks) == ("quick", 16, False)
    asked = EvalOptions.model_validate(
        {"probes": [{"kind": "task_drop", "task": "definition"}], "tasks": ["x"]}
    )
    assert asked.asked_tasks == ["x", "definition"]


def test_help_imports_no_library():
    code = (
        "import sys, runpy\nsys.argv = ['eval.py', '--help']\n"
        "try:\n    runpy.run_path('eval.py', run_name='__main__')\n"
        "except SystemExit: pass\nprint({'torch', 'lm_eval', 'datasets'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.endswith("set()\n"), done.stderr
    assert "tasks_limit=None" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec(smollm2.MODULE) is None, reason=f"needs {smollm2.PACKAGE}")
def test_a_pretrained_model_agrees_with_its_subject(script, tmp_path):
    needs_lm_eval()
    assert script.main(["smollm2", "tasks=[agreement]", "skip=[1]", *QUICK, f"out={tmp_path}"]) == 0
    found = read(tmp_path)["tasks"]["results"]["agreement"]
    assert (found["n"], found["accuracy"] > 0.9) == (40, True)
    assert found["skipped"]["difference"]["high"] < 0
