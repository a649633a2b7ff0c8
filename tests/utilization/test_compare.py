"""Reports side by side: like with like only, paired, on relative depth."""

import io
import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from depthkit.utilization import compare, evaluate
from depthkit.utilization.report import terminal
from depthkit.utilization.report.figures import PANELS, overlaid
from depthkit.utilization.report.overlay import BITS, overlays
from depthkit.utilization.report.overlay import members as overlay_members
from depthkit.utilization.report.page import comparison_page
from depthkit.utilization.report.plots import draw_overlay
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
    axes = draw_overlay(overlaid(PANELS[0]), reports).axes[0]
    assert [list(line.get_xdata()) for line in axes.lines[:3]] == [
        [0.0, 0.5, 1.0],
        [0.0, 0.25, 0.5, 0.75, 1.0],
        [0.0, 0.5, 1.0],
    ]
    assert [line.get_label() for line in axes.lines[:3]] == ["seed 0", "seed 1", "seed 2"]


def test_files(reports, tmp_path):
    comparison = compare(reports)
    comparison.save(tmp_path)
    assert json.loads((tmp_path / "compare.json").read_text())["summary"] == comparison.content["summary"]
    assert {"ablation.png", "variance.png", "rms.png"} <= {p.name for p in (tmp_path / "compare").iterdir()}
    page = (tmp_path / "compare.html").read_text()
    assert all(report.name in page for report in reports)
    assert page.count('class="figure"') == len(overlays(comparison))
    console = Console(file=io.StringIO(), width=120)
    terminal.print_comparison(console, comparison)
    assert "seed 1" in console.file.getvalue()


def test_a_metric_of_one_report_alone_is_not_overlaid(reports):
    lens = made(3, probes=["lens", "ablation"])
    files = [each.panel.file for each in overlays(compare([reports[0], lens]))]
    assert files == ["ablation", "ablation_delta_accuracy_skip"]
    three = overlays(compare([*reports, lens]))
    assert {each.panel.file: each.members for each in three}["variance"] == [0, 1, 2]


def test_depths_are_paired_too(reports):
    (pair,) = compare(reports[:2]).content["differences"]
    found = pair["scalars"]["ablate_frac@0.05"]
    shares = [report.scalar("ablate_frac@0.05") for report in reports[:2]]
    assert found["value"] == pytest.approx(shares[1] - shares[0])
    assert found["low"] <= found["value"] <= found["high"]
    (same,) = compare([reports[0], reports[0]]).content["differences"]
    assert same["scalars"]["depth_score.ablation"] == {"value": 0.0, "low": 0.0, "high": 0.0}


def told(report, **data):
    """The same report with other facts about its data."""
    return replace(report, content=report.content | {"data": report.content["data"] | data})


@pytest.fixture(scope="module")
def mixed(reports):
    """Two reports of one tokenizer, one of another."""
    other = made(3, windows=models.tokens(seed=9), name="other")
    mine = [told(report, tokenizer="a" * 64) for report in reports[:2]]
    return [*mine, told(other, tokenizer="b" * 64)]


class TestTokenizers:
    """Models that cannot read the same tokens."""

    def test_no_differences_between_groups(self, mixed):
        comparison = compare(mixed)
        assert [[report.name for report in group] for group in comparison.groups] == [
            ["seed 0", "seed 1"],
            ["other"],
        ]
        (pair,) = comparison.content["differences"]
        assert (pair["first"], pair["second"]) == ("seed 0", "seed 1")
        assert "2 groups with different tokenizers" in comparison.content["summary"][0]
        assert "(seed 0 and seed 1; other)" in comparison.content["summary"][0]

    def test_every_model_keeps_its_statements(self, mixed):
        page = comparison_page(compare(mixed))
        for report in mixed:
            for sentence in report.content["summary"]:
                about, _, text = sentence.partition(": ")
                assert f"<dt>{about}</dt>" in page
                assert text[1:30].replace("'", "&#39;") in page

    def test_the_same_tokenizer_is_no_excuse(self, mixed):
        with pytest.raises(ValueError, match=r"token ids differ.*not because of their tokenizers"):
            compare([mixed[0], told(mixed[2], tokenizer="a" * 64)])

    def test_an_unknown_tokenizer_is_no_excuse(self, mixed, reports):
        with pytest.raises(ValueError, match="token ids differ"):
            compare([reports[0], mixed[2]])

    def test_nats_become_bits_a_byte_where_the_bytes_are_known(self, mixed):
        assert "ablation" not in {each.panel.file for each in overlays(compare(mixed))}
        known = []
        for report in mixed:
            nats = report.content["baseline"]["loss_nats"]
            baseline = report.content["baseline"] | {"bits_per_byte": 2 * nats}
            known.append(replace(report, content=report.content | {"baseline": baseline}))
        comparison = compare(known)
        found = {each.panel.file: each for each in overlays(comparison)}
        assert found["ablation"].panel.y == BITS
        assert found["variance"].panel.y != BITS
        drawn = dict(overlay_members(found["ablation"], comparison))
        costs, bits = (r.per_visit("ablation_delta_nats.skip") for r in (known[2], drawn[2]))
        assert bits == pytest.approx([2 * cost for cost in costs])
