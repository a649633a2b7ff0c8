"""Files of a report: what they hold, that they are whole or absent, that they need nothing else."""

import csv
import errno
import io
import json
import os
import re

import numpy as np
import pytest
from rich.console import Console

from depthkit.utilization import Report, Trajectory, evaluate
from depthkit.utilization.report import SCHEMA_VERSION, terminal
from depthkit.utilization.report.figures import PANELS, panels, short
from depthkit.utilization.report.report import CSV_COLUMNS
from depthkit.utilization.report.summary import STATEMENTS, summarise
from tests.models import make_ids, make_model, redraw
from tests.utilization import models


@pytest.fixture(scope="module")
def report():
    return evaluate(models.mixing(4, seed=1), models.tokens(), info={"name": "four", "step": 7})


@pytest.fixture(scope="module")
def folder(report, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    report.save(folder)
    return folder


def test_json_follows_the_schema(folder):
    content = json.loads((folder / "report.json").read_text())
    assert content["schema_version"] == SCHEMA_VERSION
    assert set(content) == {
        *(
            "schema_version",
            "model",
            "env",
            "data",
            "baseline",
            "per_visit",
            "metrics",
            "scalars",
            "matrices",
        ),
        *("null", "canaries", "skipped", "timing", "summary"),
    }
    assert content["model"]["name"] == "four"
    assert content["model"]["depth"] == len(content["per_visit"]) == 4
    assert set(content["baseline"]) == {"loss_nats", "ppl", "bits_per_byte", "se", "ci95", "tok_acc"}
    assert content["baseline"]["bits_per_byte"] is None
    assert content["per_visit"][1]["visit"] == content["per_visit"][1]["layer"] == 1
    assert content["per_visit"][3]["relative_depth"] == 1.0
    assert all(set(metric) == {"unit", "definition", "probe"} for metric in content["metrics"].values())
    assert (
        content["metrics"]["variance.mean"]["probe"]
        == content["scalars"]["norm_embed.mean"]["probe"]
        == "stream"
    )
    assert content["scalars"]["depth_score.ablation"]["probe"] == "effective depth"
    assert all(len(metric["definition"]) > 10 for metric in content["metrics"].values())


def test_undefined_is_null(folder):
    text = (folder / "report.json").read_text()
    assert "NaN" not in text.replace("NaN in matrices.npz", "")
    assert json.loads(text)["per_visit"][-1]["later_effect.ratio_of_means"] is None


def test_it_reads_back(report, folder):
    again = Report.load(folder)
    assert again.content == json.loads(json.dumps(report.content))
    assert again.arrays.keys() == report.arrays.keys()
    for name, values in report.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], values)
    assert Report.load(folder / "report.json").name == "four"


def test_csv_is_long_and_complete(report, folder):
    rows = list(csv.DictReader(io.StringIO((folder / "per_visit.csv").read_text())))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert len(rows) == 4 * len(report.metrics)
    (row,) = [r for r in rows if r["visit"] == "2" and r["metric"] == "ablation_delta_nats"]
    assert row["agg"] == "skip"
    assert float(row["value"]) == report.per_visit("ablation_delta_nats.skip")[2]
    assert float(row["ci_lo"]) <= float(row["value"]) <= float(row["ci_hi"])
    last = [r for r in rows if r["visit"] == "3" and r["metric"] == "later_effect"]
    assert {r["value"] for r in last} == {""}


def test_every_figure_is_a_picture(folder):
    for panel in PANELS:
        data = (folder / "plots" / f"{panel.file}.png").read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) > 5000


def test_a_partial_report_has_the_figures_it_can(tmp_path):
    report = evaluate(models.mixing(2), models.tokens(), ["influence"])
    assert [panel.file for panel in panels(report)] == ["influence"]
    report.save(tmp_path, html=False)
    assert [p.name for p in (tmp_path / "plots").iterdir()] == ["influence.png"]
    assert not (tmp_path / "report.html").exists()
    with pytest.raises(KeyError):
        report.per_visit("variance.mean")


def test_a_full_disk_leaves_the_old_report(tmp_path, monkeypatch):
    report, folder = evaluate(models.mixing(2), models.tokens(), ["influence"]), tmp_path
    report.save(folder)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    for name in ("per_visit.csv", "matrices.npz", "influence.png", "report.html", "report.json"):

        def full(descriptor, wanted=name):
            held = os.readlink(f"/proc/self/fd/{descriptor}")
            if wanted.partition(".")[0] in held and held.endswith(wanted.rpartition(".")[2]):
                raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            report.save(folder)
        after = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        assert after.keys() == before.keys()
        json.loads(after[folder / "report.json"])
    assert after[folder / "report.json"] == before[folder / "report.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "no report there"), ("{", "not a report"), ("[]", "not a report"), ("{}", "schema version None")],
)
def test_what_is_not_a_report(tmp_path, text, message):
    if text is not None:
        (tmp_path / "report.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        Report.load(tmp_path)


def test_a_report_without_its_arrays(report, tmp_path):
    report.save(tmp_path, html=False, plots=False)
    (tmp_path / "matrices.npz").unlink()
    with pytest.raises(ValueError, match=r"matrices\.npz: missing"):
        Report.load(tmp_path)


class TestSummary:
    def test_counts_come_from_the_numbers(self, report):
        costs = report.per_visit("ablation_delta_nats.skip")
        cheap, dear = (sum(cost <= limit for cost in costs) for limit in (0.01, 0.05))
        text = " ".join(report.content["summary"])
        assert (
            f"Skipping: of 4 layers, {cheap} can be skipped one at a time within 0.01 nat and {dear} within 0.05 nat."
            in text
        )
        order = sorted(range(4), key=lambda visit: -costs[visit])
        (costliest,) = [line for line in report.content["summary"] if line.startswith("Costliest: ")]
        assert re.findall(r"layer (\d) [+-]", costliest) == [str(visit) for visit in order[:3]]
        assert f"{report.content['baseline']['loss_nats']:.4f}" in text

    def test_it_says_nothing_it_does_not_know(self):
        report = evaluate(models.mixing(2), models.tokens(1), ["influence"])
        baseline, chance = summarise(report)
        assert "interval" not in baseline
        assert chance == (
            "Against chance: not measured; null=random_init does, for another 2 layer evaluations."
        )

    def test_five_statements(self, report):
        assert [line.partition(":")[0] for line in report.content["summary"][:5]] == list(STATEMENTS)

    def test_it_names_visits_of_loops_by_their_key(self):
        looped = evaluate(redraw(make_model(depth=1, loops=3)), make_ids(4, 10), ["ablation"])
        (costliest,) = [line for line in summarise(looped) if line.startswith("Costliest: ")]
        assert re.fullmatch(r"Costliest: (visit (\d) \(trunk\.\2\.0\) [+-][\d.]+ nat(, |\.)){3}", costliest)


def printed(print_it, value):
    console = Console(file=io.StringIO(), width=100)
    print_it(console, value)
    return console.file.getvalue()


def test_terminal_table(report):
    text = printed(terminal.print_report, report)
    assert "four: 4 layers, counted from 0" in text
    assert short(report.per_visit("variance.mean")[2], 3) in text
    assert "10 layer evaluations" in " ".join(text.split())


def test_terminal_table_of_a_deep_model_is_short():
    text = printed(
        terminal.print_report, evaluate(models.Model([models.Identity()] * 50), models.tokens(), ["stream"])
    )
    rows = re.findall(r"^ +(\d+) ", text, flags=re.M)
    assert rows == [str(v) for v in (*range(20), *range(30, 50))]


class TestTrajectory:
    @pytest.fixture
    def trajectory(self, report):
        return Trajectory({10: evaluate(models.mixing(4, seed=2), models.tokens()), 20: report})

    def test_rows(self, trajectory, report):
        rows = trajectory.rows()
        assert [row["step"] for row in rows] == [10, 20]
        assert rows[1]["loss_nats"] == report.content["baseline"]["loss_nats"]
        assert rows[1]["ablate_frac@0.01"] == report.scalar("ablate_frac@0.01")

    def test_files(self, trajectory, tmp_path):
        trajectory.save(tmp_path)
        stem = tmp_path / "utilization_over_training"
        assert json.loads(stem.with_suffix(".json").read_text())["checkpoints"] == trajectory.rows()
        table = list(csv.DictReader(io.StringIO(stem.with_suffix(".csv").read_text())))
        assert [row["step"] for row in table] == ["10", "20"]
        assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
        assert "cost > 0.01" in " ".join(printed(terminal.print_trajectory, trajectory).split())

    def test_steps_must_ascend(self, report):
        with pytest.raises(ValueError, match="order of the steps"):
            Trajectory({20: report, 10: report})
