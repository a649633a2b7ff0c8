"""The study as a document: what it runs, writes, says, and does when something fails."""

import argparse
import csv
import json
from pathlib import Path

import pytest
import torch
import yaml

from depthkit import config as c
from depthkit.__main__ import main
from depthkit.config import ConfigError
from depthkit.files import write_text
from depthkit.ladder.hosts import AXES, SURROUNDINGS, host
from depthkit.ladder.init_study.claims import answer
from depthkit.ladder.init_study.measure import distance_to_identity, spread_blocks
from depthkit.ladder.init_study.metrics import CURVES, METRICS
from depthkit.ladder.init_study.spec import ClaimConfig
from depthkit.ladder.init_study.study import look, study
from depthkit.model.gains import Gains, per_site
from depthkit.model.registries import REGULATORS
from depthkit.model.regulators.base import Regulator
from depthkit.utilization.capture import Call
from tests.ladder.studies import study_dict
from tests.models import model_dict

ROOT = Path(__file__).parents[2]
CLAIM = {"says": "It grows", "source": "a paper", "method": "pre_ln", "metric": "variance_last", "than": 0}


def make(**change):
    return c.parse(study_dict(**change))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    config = make(claims=[{**CLAIM, "expect": "higher"}, {**CLAIM, "expect": "lower", "than": "lns"}])
    page = folder / "docs" / "page.md"
    return config, folder, page, study(config, folder / "out", folder / "study.yaml", page)


def test_every_number_is_written_once_in_json_and_summed_up_in_csv(written):
    config, folder, _, code = written
    assert code == 0
    content = json.loads((folder / "out" / "study.json").read_text())
    assert [(x["method"], x["depth"]) for x in content["cells"]] == [
        ("pre_ln", 2),
        ("lns", 2),
        ("pre_ln", 4),
        ("lns", 4),
    ]
    rows = list(csv.DictReader((folder / "out" / "metrics.csv").read_text().splitlines()))
    assert len(rows) == 4 * len(METRICS)
    for row in rows:
        (cell,) = (
            x for x in content["cells"] if (x["method"], str(x["depth"])) == (row["method"], row["depth"])
        )
        values = [seed[row["metric"]] for seed in cell["seeds"].values()]
        if row["mean"]:
            assert float(row["mean"]) == pytest.approx(sum(values) / len(config.seeds))
    curves = list(csv.DictReader((folder / "out" / "curves.csv").read_text().splitlines()))
    assert len(curves) == 2 * (2 + 4)
    assert set(CURVES) < set(curves[0])
    assert c.load(folder / "out" / "study.yaml") == config


def test_there_is_a_picture_for_every_quantity_and_depth(written):
    _, folder, page, _ = written
    names = {p.name for p in (folder / "out" / "plots").iterdir()}
    assert names == {f"{name}_{depth}.png" for name in CURVES for depth in (2, 4)}
    picture = page.parent / "images" / "page.png"
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert f"images/{picture.name}" in page.read_text()


def test_the_page_holds_command_seeds_tables_and_both_verdicts(written):
    config, folder, page, _ = written
    text = page.read_text()
    assert f"python -m depthkit init {folder / 'study.yaml'} --page {page}" in text
    assert "2 seeds" in text
    assert all(f"| {name} |" in text for name in config.methods)
    assert "## 4 blocks" in text
    found = {answer.word for answer in look(config).answers()}
    assert all(f"### {word.capitalize()}" in text for word in found)


def test_equal_seeds_give_equal_numbers():
    first, second = look(make(depths=[3])), look(make(depths=[3]))
    assert [cell.seeds for cell in first.cells] == [cell.seeds for cell in second.cells]


def test_the_command_takes_overrides_on_both_sides_of_options(tmp_path, monkeypatch):
    source = tmp_path / "study.yaml"
    write_text(source, yaml.safe_dump(study_dict()))
    words = ["init", str(source), "depths=[2]", "--out", str(tmp_path / "out"), "seeds=[3]"]
    monkeypatch.setattr("sys.argv", ["depthkit", *words])
    assert main() == 0
    content = json.loads((tmp_path / "out" / "study.json").read_text())
    assert [(cell["depth"], list(cell["seeds"])) for cell in content["cells"]] == [(2, ["3"])] * 2


def test_the_command_refuses_other_documents(monkeypatch):
    monkeypatch.setattr("sys.argv", ["depthkit", "init", str(ROOT / "configs" / "quickstart.yaml")])
    with pytest.raises(ValueError, match="is a run, for train"):
        main()


@pytest.mark.slow
def test_numbers_do_not_depend_on_the_number_of_processes():
    one, two = look(make(depths=[2])), look(make(depths=[2], workers=2))
    assert [cell.seeds for cell in one.cells] == [cell.seeds for cell in two.cells]


def test_one_failing_method_is_listed_and_the_others_are_complete(tmp_path):
    @REGULATORS.register("test_broken")
    class Broken(Regulator):
        """Fails in the forward."""

        def gains(self, plan, step, training):
            raise RuntimeError("no gains today")

    try:
        config = make(methods={"pre_ln": {}, "bad": {"model.regulators": ["test_broken"]}}, depths=[2])
        assert study(config, tmp_path, tmp_path / "s.yaml") == 1
        content = json.loads((tmp_path / "study.json").read_text())
        assert {cell["method"] for cell in content["cells"]} == {"pre_ln"}
        assert all("no gains today" in reason for reason in content["failed"].values())
        assert len(content["failed"]) == 2
    finally:
        REGULATORS.remove("test_broken")


def test_kinds_are_picked_up_on_arrival_and_refusals_are_told():
    @REGULATORS.register("test_arrival")
    class Arrival(Regulator):
        """Halves what is written, after the add only."""

        class Config(Regulator.Config):
            """Settings."""

            def conflict(self, model):
                sites = [model.placement_of(s) for s in model.segments]
                return None if all(p.after_add and not p.before_branch for p in sites) else "wants Post-LN"

        def gains(self, plan, step, training):
            return Gains(write=per_site([0.5] * plan.depth))

    @REGULATORS.register("test_never")
    class Never(Regulator):
        """Fits nowhere."""

        class Config(Regulator.Config):
            """Settings."""

            def conflict(self, model):
                return "fits nowhere"

    try:
        config = make(every=["regulators"], depths=[2])
        added = config.variants()["test_arrival"]
        assert added == {
            "model.placement": "post",
            "model.final_norm": False,
            "model.regulators": ["test_arrival"],
        }
        assert "fits nowhere" in config.refused()["test_never"]
        assert "test_never" not in config.variants()
        assert {rung.place["method"] for rung in config.rungs()} == set(config.variants())
    finally:
        REGULATORS.remove("test_arrival")
        REGULATORS.remove("test_never")


@pytest.mark.parametrize("axis", AXES)
def test_every_kind_has_a_host_that_draws_no_advice(axis):
    for kind in AXES[axis].registry.names():
        found = host(axis, kind, {"model": model_dict(depth=4)})
        assert found.model.advice() == []
        around = {k: v for k, v in found.settings.items() if k != AXES[axis].key}
        assert around in [dict(s) for s in SURROUNDINGS]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"claims": [{**CLAIM, "expect": "higher", "metric": "variance_lost"}]},
            "did you mean 'variance_last'",
        ),
        ({"claims": [{**CLAIM, "expect": "higher", "method": "preln"}]}, "did you mean 'pre_ln'"),
        ({"claims": [{**CLAIM, "expect": "higher", "than": "lnss"}]}, "did you mean 'lns'"),
        ({"deepest": {"depth": 8, "methods": ["nothing"]}}, "unknown method 'nothing'"),
        ({"every": ["regulator"]}, "every"),
        ({"depths": []}, "depths"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_message(change, message):
    with pytest.raises(ConfigError, match=message):
        make(**change)


def test_the_deepest_depth_is_for_the_named_methods():
    config = make(deepest={"depth": 8, "methods": ["lns"]}, seeds=[0])
    places = [(r.place["method"], r.place["depth"]) for r in config.rungs()]
    assert places == [("pre_ln", 2), ("lns", 2), ("pre_ln", 4), ("lns", 4), ("lns", 8)]
    assert [r.config.model.plan().depth for r in config.rungs()] == [2, 2, 4, 4, 8]


def claim(expect, than=1.0, within=0.0):
    raw = {**CLAIM, "expect": expect, "than": than, "within": within}
    return ClaimConfig.model_validate(raw)


@pytest.mark.parametrize(
    ("asked", "values", "word"),
    [
        (claim("lower"), [0.5, 0.6, 0.5], "agrees"),
        (claim("higher"), [0.5, 0.6, 0.5], "disagrees"),
        (claim("higher"), [0.5, 1.6, 0.9], "undecided"),
        (claim("higher"), [2.0], "undecided"),
        (claim("near", within=0.5), [0.9, 1.0, 1.1], "agrees"),
        (claim("near", within=0.5), [2.9, 3.0, 3.1], "disagrees"),
        (claim("near", within=0.5), [1.4, 1.5, 1.6], "undecided"),
        (claim("lower", than=0), [0.0, 0.0], "disagrees"),
    ],
)
def test_the_word_of_a_claim_follows_from_the_interval(asked, values, word):
    found = answer(asked, 8, dict(enumerate(values)), None)
    assert found.word == word
    assert found.sentence().startswith(f"{word}: It grows (a paper).")


def test_claims_about_two_methods_are_paired_by_seed():
    asked = claim("lower", than="lns")
    found = answer(asked, 8, {0: 1.0, 1: 5.0}, {0: 1.1, 1: 5.1})
    assert found.word == "agrees"
    assert found.difference.mean == pytest.approx(-0.1)
    assert answer(asked, 8, {0: 1.0, 1: None}, {0: 1.1, 1: 5.1}) is None


def test_the_jacobian_is_that_of_the_whole_block():
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 6).requires_grad_(False)
    call = Call(layer, (None,), {}, 0)
    found = distance_to_identity(call, torch.randn(1, 3, 6), 4000, torch.Generator().manual_seed(0))
    distance = torch.linalg.matrix_norm(layer.weight - torch.eye(6)) / 6**0.5
    assert found == pytest.approx(float(distance), rel=0.02)


def test_measured_blocks_hold_the_first_the_middle_and_the_last():
    assert spread_blocks(2, 12) == [1, 2]
    assert {1, 256, 512} <= set(spread_blocks(512, 12))
    assert len(spread_blocks(512, 12)) <= 14


def test_the_dry_run_of_train_lists_the_models(capsys):
    arguments = argparse.Namespace(dry_run=True, run_dir=None, config=None)
    assert make(seeds=[0]).execute(arguments) == 0
    assert "4 models: pre_ln, lns" in capsys.readouterr().out
