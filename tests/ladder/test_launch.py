"""A whole ladder: run, fail in one place, go on, start again, grow."""

import csv
import json

import pytest

from depthkit import config as c
from depthkit.ladder.launch import Climb, climb
from depthkit.ladder.rung import run_rung
from depthkit.ladder.state import DIVERGED, FINISHED, RungFiles
from tests.ladder.ladders import ladder_dict, leave_pictures_out


def make(**change):
    return c.parse(ladder_dict(**change))


@pytest.fixture(scope="module")
def climbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ladder") / "l"
    return make(), folder, climb(make(), folder)


def test_every_rung_is_an_ordinary_run_with_a_report(climbed):
    ladder, folder, code = climbed
    assert code == 0
    for rung in ladder.rungs():
        assert {"config.yaml", "metrics.jsonl", "report.json", "matrices.npz", "rung.json"} <= {
            p.name for p in (folder / "rungs" / rung.name).iterdir()
        }


def test_the_summary_has_a_row_a_rung_and_its_numbers_come_from_the_reports(climbed):
    ladder, folder, _ = climbed
    rows = list(csv.DictReader((folder / "summary.csv").read_text().splitlines()))
    assert [row["rung"] for row in rows] == [rung.name for rung in ladder.rungs()]
    for row in rows:
        report = json.loads((folder / "rungs" / row["rung"] / "report.json").read_text())
        assert float(row["loss_nats"]) == report["baseline"]["loss_nats"]
        assert int(row["visits"]) == int(row["depth"])
    content = json.loads((folder / "summary.json").read_text())
    assert len(content["cells"]) == 4
    assert len(content["comparisons"]) == 2 + 2


def test_the_differences_are_paired_by_seed(climbed):
    _, folder, _ = climbed
    rows = list(csv.DictReader((folder / "summary.csv").read_text().splitlines()))
    loss = {(r["method"], r["depth"], r["seed"]): float(r["loss_nats"]) for r in rows}
    found = json.loads((folder / "summary.json").read_text())["comparisons"]
    for item in found:
        where = {"method": None, "depth": None, **item["where"]}
        pairs = [
            loss[(*(str(where[a] or item[side]) for a in ("method", "depth")), str(seed))]
            for seed in (0, 1)
            for side in ("value", "baseline")
        ]
        assert item["difference_nats"]["mean"] == pytest.approx(
            (pairs[0] - pairs[1] + pairs[2] - pairs[3]) / 2
        )


def test_a_second_start_runs_nothing_again(no_pictures, climbed):
    ladder, folder, _ = climbed
    before = {p: p.stat().st_mtime_ns for p in (folder / "rungs").rglob("*.safetensors")}
    metrics = {p: p.read_text() for p in (folder / "rungs").rglob("metrics.jsonl")}
    assert climb(ladder, folder) == 0
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert {p: p.read_text() for p in metrics} == metrics


def two(**change):
    """One method, two seeds."""
    return make(**{"axes": {"seed": [0, 1]}, "compare": [], **change})


def states(ladder, folder):
    return {rung.name: RungFiles(folder, rung.name).state() for rung in ladder.rungs()}


def test_a_ladder_may_grow_and_only_new_rungs_run(no_pictures, tmp_path):
    assert climb(two(), tmp_path) == 0
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "rungs").rglob("*.safetensors")}
    assert climb(two(axes={"seed": [1, 2]}), tmp_path) == 0
    assert {p: p.stat().st_mtime_ns for p in before} == before
    content = json.loads((tmp_path / "summary.json").read_text())
    assert content["gone"] == ["seed-0"]
    assert content["cells"][0]["loss_nats"]["count"] == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"run": {"train": {"lr": 0.02}}},
            "seed-0 holds a run with another config.*\n.*train.lr: 0.01 there",
        ),
        ({"evaluate": {"sequences": 5}}, "evaluated otherwise.*\n.*evaluate.sequences: 4 there"),
    ],
)
def test_a_changed_ladder_over_its_own_folder_is_refused(climbed_two, change, message):
    folder, before = climbed_two, (climbed_two / "ladder.yaml").read_text()
    raw = c.merge(ladder_dict(axes={"seed": [0, 1]}, compare=[]), change)
    with pytest.raises(ValueError, match=message):
        climb(c.parse(raw), folder)
    assert (folder / "ladder.yaml").read_text() == before


@pytest.fixture(scope="module")
def climbed_two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        leave_pictures_out(patch)
        assert climb(two(), folder) == 0
    return folder


def broken(tmp_path, **change):
    """A ladder of which one rung has no text to read."""
    files = {"kind": "files", "paths": [str(tmp_path / "text.txt")], "separator": "\n"}
    axes = {"corpus": {"good": {}, "bad": {"data.corpus": files}}, "seed": [0]}
    return make(axes=axes, compare=[], fairness={"same_data": False}, **change)


def test_a_rung_that_fails_is_retried_marked_and_named_and_the_others_go_on(no_pictures, tmp_path, capsys):
    ladder = broken(tmp_path, retries=2)
    assert climb(ladder, tmp_path / "l") == 1
    content = json.loads((tmp_path / "l" / "summary.json").read_text())
    assert list(content["unfinished"]) == ["corpus-bad_seed-0"]
    assert "text.txt" in content["unfinished"]["corpus-bad_seed-0"]
    assert len(content["cells"]) == 1
    assert capsys.readouterr().out.count("retrying corpus-bad_seed-0") == 2
    assert "failed" in (tmp_path / "l" / "summary.html").read_text()
    assert states(ladder, tmp_path / "l")["corpus-bad_seed-0"].attempts == 3


def test_a_marked_rung_is_left_alone_until_it_is_asked_for(no_pictures, tmp_path, capsys):
    ladder, folder = broken(tmp_path, retries=0), tmp_path / "l"
    assert climb(ladder, folder) == 1
    assert climb(ladder, folder) == 1
    assert "--retry tries it again" in capsys.readouterr().out
    assert states(ladder, folder)["corpus-bad_seed-0"].attempts == 1
    (tmp_path / "text.txt").write_text("\n".join(f"and the morning of day {n}" for n in range(400)))
    assert climb(ladder, folder, retry=True) == 0
    assert states(ladder, folder)["corpus-bad_seed-0"].state == FINISHED


def test_a_rung_that_diverges_is_marked_with_the_visit_where_it_began(no_pictures, tmp_path):
    wild = {"model.norm": "none", "model.embedding_std": 1e30, "train.max_bad_steps": 1}
    ladder = make(axes={"method": {"tame": {}, "wild": wild}, "seed": [0]}, compare=[])
    assert climb(ladder, tmp_path) == 1
    state = states(ladder, tmp_path)["method-wild_seed-0"]
    assert (state.state, state.attempts) == (DIVERGED, 1)
    assert "visit 0" in state.where
    row = list(csv.DictReader((tmp_path / "summary.csv").read_text().splitlines()))[1]
    assert (row["status"], row["error"]) == ("diverged", state.where)
    assert state.where in (tmp_path / "summary.html").read_text()


def test_an_interrupted_ladder_goes_on_where_it_was(no_pictures, tmp_path):
    """Stopped after its second rung, in the middle of the third: what was finished is not touched again."""
    ladder, done = make(axes={"depth": [1, 2], "seed": [0, 1]}, compare=[]), []

    def job(task):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(task.rung.name)
        return run_rung(task)

    launch = Climb(ladder, tmp_path, ladder.rungs(), console())
    launch.launcher.job = job
    with pytest.raises(KeyboardInterrupt):
        launch.all(retry=False)
    before = {name: (tmp_path / "rungs" / name / "metrics.jsonl").read_text() for name in done}
    assert climb(ladder, tmp_path) == 0
    assert {name: (tmp_path / "rungs" / name / "metrics.jsonl").read_text() for name in done} == before
    assert {state.attempts for state in states(ladder, tmp_path).values()} == {1}


def console():
    from rich.console import Console

    return Console(quiet=True)


def test_a_failed_rung_goes_on_from_its_last_checkpoint(no_pictures, tmp_path, monkeypatch):
    """A disk that is full at step 3 of 4, once: the second attempt takes the last two steps only."""
    from depthkit.training.recorder import Recorder

    real, steps = Recorder.train, []

    def full_once(self, step, **values):
        steps.append(step)
        if step == 3 and steps.count(3) == 1:
            raise OSError(28, "No space left on device")
        return real(self, step, **values)

    monkeypatch.setattr(Recorder, "train", full_once)
    run = {**ladder_dict()["run"], "train": {**ladder_dict()["run"]["train"], "checkpoint_every": 2}}
    ladder = make(run=run, axes={"seed": [0]}, compare=[])
    assert climb(ladder, tmp_path) == 0
    assert steps == [1, 2, 3, 3, 4]
    (state,) = states(ladder, tmp_path).values()
    assert (state.state, state.attempts, state.error) == (FINISHED, 2, None)
