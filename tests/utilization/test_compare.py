"""Reports side by side: like with like only, paired, on relative depth."""

import io
import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from depthkit.utilization import compare, evaluate
from depthkit.utilization.report import terminal
from depthkit.utilization.report.plots import draw_lines
from tests.utilization import models


def made(seed, depth=3, name=None, **kwargs):
    settings = {"windows": models.tokens(), "probes": ["ablation", "stream", "angular"], **kwargs}
    info = {"name": name or f"seed {seed}"}
    return evaluate(models.mixing(depth, seed=seed), settings["windows"], settings["probes"], info=info)


@pytest.fixture(scope="module")
def reports():
    return [made(0), made(1, depth=5), made(2)]


def test_pairs_are_differences_of_losses(reports):
    found = compare(reports).content["differences"]
    assert [(pair["first"], pair["second"]) for pair in found] == [
        ("seed 0", "seed 1"),
        ("seed 0", "seed 2"),
        ("seed 1", "seed 2"),
    ]
    losses = [report.content["baseline"]["loss_nats"] for report in reports]
    assert found[0]["value"] == pytest.approx(losses[1] - losses[0])
    assert found[0]["low"] < found[0]["value"] < found[0]["high"]


def test_a_model_ties_with_itself(reports):
    comparison = compare([reports[0], reports[0]])
    assert comparison.content["differences"][0]["value"] == 0.0
    assert "tied" in comparison.content["summary"][0]
    assert [report.name for report in comparison.reports] == ["seed 0 (1)", "seed 0 (2)"]


def test_one_run_at_two_steps_is_told_apart_by_step(reports):
    def at(step):
        content = reports[0].content
        return replace(reports[0], content=content | {"model": content["model"] | {"step": step}})

    assert [r.name for r in compare([at(20), at(40)]).reports] == ["seed 0 (step 20)", "seed 0 (step 40)"]


def test_a_certain_difference_is_called(reports):
    model = models.mixing(3)
    with torch.no_grad():
        model.head.weight.mul_(0.0)
    uniform = evaluate(model, models.tokens(), ["ablation"], info={"name": "uniform"})
    (sentence,) = compare([reports[0], uniform]).content["summary"]
    assert sentence.startswith("uniform has the lower loss of the two, against seed 0 (-")


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        (models.tokens(seed=9), "the token ids differ"),
        (models.tokens(count=5), "the token ids differ"),
    ],
)
def test_unlike_data_are_refused(reports, windows, message):
    with pytest.raises(ValueError, match=message):
        compare([reports[0], made(1, windows=windows)])


def test_targets_count_as_data(reports):
    windows = models.tokens()
    real = torch.ones(6, 12, dtype=torch.bool)
    real[0, 6:] = False
    masked = made(1, windows=(windows[:, :-1], windows[:, 1:], real))
    with pytest.raises(ValueError, match=r"seed 0 and seed 1 cannot be compared.*data\.sha256"):
        compare([reports[0], masked])


@pytest.mark.parametrize(
    ("part", "key", "value", "words"),
    [
        ("data", "n_tokens_scored", 3, "number of scored tokens"),
        (None, "schema_version", 0, "version of the metrics"),
        ("model", "dtype", "bfloat16", "number format"),
    ],
)
def test_what_else_must_agree(reports, part, key, value, words):
    content = reports[1].content
    changed = {key: value} if part is None else {part: content[part] | {key: value}}
    with pytest.raises(ValueError, match=words):
        compare([reports[0], replace(reports[1], content=content | changed)])


def test_one_report_is_not_a_comparison(reports):
    with pytest.raises(ValueError, match="at least two"):
        compare(reports[:1])


def test_depths_meet_on_relative_depth(reports):
    from depthkit.utilization.report.figures import PANELS

    axes = draw_lines(PANELS[0], reports).axes[0]
    assert [list(line.get_xdata()) for line in axes.lines] == [
        [0.0, 0.5, 1.0],
        [0.0, 0.25, 0.5, 0.75, 1.0],
        [0.0, 0.5, 1.0],
    ]
    assert [line.get_label() for line in axes.lines] == ["seed 0", "seed 1", "seed 2"]


def test_files(reports, tmp_path):
    comparison = compare(reports)
    comparison.save(tmp_path)
    assert json.loads((tmp_path / "compare.json").read_text())["summary"] == comparison.content["summary"]
    assert sorted(p.name for p in (tmp_path / "compare").iterdir()) == ["ablation.png", "variance.png"]
    page = (tmp_path / "compare.html").read_text()
    assert all(report.name in page for report in reports)
    assert page.count('class="plotly-graph-div"') == 2
    console = Console(file=io.StringIO(), width=120)
    terminal.print_comparison(console, comparison)
    assert "seed 1" in console.file.getvalue()
