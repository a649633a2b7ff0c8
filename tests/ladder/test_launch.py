"""A whole ladder: run, fail in one place, go on, summarise."""

import argparse
import csv
import json
from pathlib import Path

import pytest

from depthkit import config as c
from depthkit.ladder.launch import climb
from tests.ladder.ladders import ladder_dict


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
        assert {"config.yaml", "metrics.jsonl", "report.json", "matrices.npz"} <= {
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


def test_page_and_pictures_are_there(climbed):
    _, folder, _ = climbed
    page = (folder / "report.html").read_text()
    for sentence in json.loads((folder / "summary.json").read_text())["comparisons"]:
        assert sentence["sentence"].split(" (")[0] in page
    assert "http://" not in page.split("</script>")[-1]
    assert {p.name for p in (folder / "plots").iterdir()} == {"loss.png", "variance.png", "ablation.png"}


def test_a_second_start_runs_nothing_again(climbed):
    ladder, folder, _ = climbed
    before = {p: p.stat().st_mtime_ns for p in (folder / "rungs").rglob("*.safetensors")}
    metrics = {p: p.read_text() for p in (folder / "rungs").rglob("metrics.jsonl")}
    assert climb(ladder, folder) == 0
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert {p: p.read_text() for p in metrics} == metrics


def test_another_ladder_in_the_same_folder_is_refused(climbed):
    _, folder, _ = climbed
    with pytest.raises(ValueError, match="holds another ladder"):
        climb(make(replicate="seed", compare=[]), folder)


def test_a_rung_that_fails_is_named_and_the_others_go_on(tmp_path, capsys):
    axes = {
        "corpus": {
            "good": {},
            "bad": {"data.corpus": {"kind": "files", "paths": [str(tmp_path / "none.txt")]}},
        },
        "seed": [0],
    }
    ladder = make(axes=axes, compare=[{"axis": "corpus", "baseline": "good"}])
    assert climb(ladder, tmp_path / "l") == 1
    content = json.loads((tmp_path / "l" / "summary.json").read_text())
    assert list(content["failed"]) == ["corpus-bad_seed-0"]
    assert "none.txt" in content["failed"]["corpus-bad_seed-0"]
    assert len(content["cells"]) == 1
    assert "failed" in capsys.readouterr().out
    assert (tmp_path / "l" / "report.html").exists()


def test_dry_run_prints_a_row_a_rung_and_runs_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = argparse.Namespace(dry_run=True, run_dir=None, config=Path("x.yaml"))
    assert make().execute(arguments) == 0
    out = capsys.readouterr().out
    assert "8 rungs" in out
    assert out.count("lns") == 4
    assert list(tmp_path.iterdir()) == []
