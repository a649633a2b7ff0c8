"""The page of a report: self-contained, every number in it, marks where loops and kinds change."""

import json
import re

import numpy as np
import pytest

from depthkit.utilization import PROBES, evaluate
from depthkit.utilization.probe import Probe
from depthkit.utilization.report.figures import (
    PANELS,
    Axis,
    Heat,
    Lines,
    drawn_values,
    panels,
    values_of,
)
from depthkit.utilization.report.generic import axis, groups
from depthkit.utilization.report.interactive import figure
from depthkit.utilization.report.marks import marks
from depthkit.utilization.report.page import report_page
from depthkit.utilization.report.scales import Scale, colour_limits, scale_of, symlog
from depthkit.utilization.result import Matrix, Result, Scalar, Series
from tests.models import make_ids, make_model, model_dict, redraw
from tests.utilization import models


@pytest.fixture(scope="module")
def report():
    return evaluate(models.mixing(4, seed=1), models.tokens(), null="shuffled_layers", info={"name": "four"})


@pytest.fixture(scope="module")
def looped():
    """Visits 0 | 1 2, 3 4, 5 6 | 7: a dense prelude, a dense and a moe layer looped thrice, a dense coda."""
    dense = model_dict()["blocks"]["dense"]
    moe = dense | {"ffn": {"kind": "moe", "num_experts": 4, "top_k": 2}}
    segments = [
        {"name": "prelude", "pattern": ["dense"]},
        {"name": "core", "pattern": ["dense", "moe"], "loops": 3, "inject": "add"},
        {"name": "coda", "pattern": ["dense"]},
    ]
    model = redraw(make_model(blocks={"dense": dense, "moe": moe}, segments=segments))
    return evaluate(model, make_ids(4, 10), ["ablation", "causal", "experts"])


def specs(page):
    """The data of every figure of a page."""
    return [
        json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page, re.S)
    ]


def test_the_page_needs_nothing_else(report):
    page = report_page(report)
    own = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=", page.replace('src=""', ""))
    assert "http" not in own
    assert "FAILED" not in own
    for sentence in report.content["summary"]:
        about, _, text = sentence.partition(": ")
        assert f"<dt>{about}</dt><dd>{text[0].upper()}{text[1:20]}" in own.replace("&#39;", "'")
    assert "10 layer evaluations" in " ".join(own.split())
    assert "10 more for shuffled_layers" in " ".join(own.split())


def test_every_number_is_drawn_once(report):
    every = [*panels(report), *(panel for group in groups(report).values() for panel in group)]
    assert len(specs(report_page(report))) == len(every)
    drawn = [m for p in every for m in (p.metrics.values() if isinstance(p, Lines) else [p.matrix])]
    assert sorted(drawn) == sorted([*report.metrics, *report.content["matrices"]])
    files = [panel.file for panel in every]
    assert len(set(files)) == len(files)
    assert [panel for panel in panels(report) if panel.file in {p.file for p in PANELS}] != []


def test_a_new_probe_needs_no_line_here():
    @PROBES.register("novel")
    class Novel(Probe):
        """Numbers nobody has seen."""

        def compute(self):
            values = Series([0.5, None, 0.7], "novelties", "how new it is")
            other = Series([1.0, 2.0, 3.0], "novelties", "how new it is at most")
            table = Matrix(np.eye(3), "visit", "gate: 0 up, 1 down, 2 off", "novelties", "how new by gate")
            return Result(
                {"newness.mean": values, "newness.max": other},
                {"newness.by_gate": table},
                {"newness.all": Scalar(3.25, "how new in all")},
            )

    try:
        report = evaluate(models.mixing(3), models.tokens(), ["stream", "novel"])
    finally:
        PROBES.remove("novel")
    lines, heat = groups(report)["novel"]
    assert lines.metrics == {"mean": "newness.mean", "max": "newness.max"}
    assert (lines.title, lines.y, heat.x.labels) == ("newness", "novelties", ("up", "down", "off"))
    page = report_page(report)
    assert re.search(r"<summary>novel <span[^>]*> 2 figures 1 number</span>", page)
    for words in ("how new it is", "how new by gate", "how new in all", "3.25"):
        assert words in page


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("n - 1", Axis("visits n", 1)),
        ("parameter: 0 q.weight, 1 k.weight", Axis("parameter", 0, ("q.weight", "k.weight"))),
        ("loop count: 1, 2, 6", Axis("loop count", 0, ("1", "2", "6"))),
        ("state: 0 is what the first visit reads, l what the l-th visit gives", Axis("state")),
        ("visit", Axis("visit")),
    ],
)
def test_axes_read_a_matrix_own_words(words, expected):
    assert axis(words) == expected


def test_the_null_model_is_grey(report):
    drawn = figure(panels(report)[0], report)
    (null,) = [trace for trace in drawn.data if trace.name == "null: shuffled layers"]
    assert (
        list(null.customdata)
        == report.nulls["shuffled_layers"]["per_visit"]["ablation_delta_nats.skip"]["values"]
    )
    assert null.line.color == "#8b949e"


class TestLoops:
    def test_marks(self, looped):
        found = marks(looped)
        assert [(s.label, s.first, s.last) for s in found.segments] == [
            ("prelude", 0, 0),
            ("core x3", 1, 6),
            ("coda", 7, 7),
        ]
        assert found.boundaries == [0.5, 2.5, 4.5, 6.5]
        assert found.kinds == ["dense", "moe"]
        assert found.codes == [0, 0, 1, 0, 1, 0, 1, 0]

    def test_a_plain_stack_has_nothing_to_mark(self, report):
        found = marks(report)
        assert (found.segments, found.boundaries, len(found.kinds)) == ([], [], 1)

    def test_figures_show_them(self, looped):
        drawn = figure(panels(looped)[0], looped)
        assert [shape.x0 for shape in drawn.layout.shapes] == [0.5, 2.5, 4.5, 6.5]
        assert [note.text for note in drawn.layout.annotations] == ["prelude", "core x3", "coda"]
        (strip,) = [trace for trace in drawn.data if trace.type == "heatmap"]
        assert list(strip.z[0]) == [0, 0, 1, 0, 1, 0, 1, 0]

    def test_loops_by_slots(self, looped):
        (grid,) = [
            p for p in panels(looped) if isinstance(p, Heat) and p.matrix == "ablation_delta_nats.skip"
        ]
        costs = looped.per_visit("ablation_delta_nats.skip")
        assert values_of(grid, looped).tolist() == [costs[1:3], costs[3:5], costs[5:7]]

    def test_hover_tells_the_place(self, looped):
        text = figure(panels(looped)[0], looped).data[0].hovertext[4]
        assert "visit 4 (core.1.1), layer 2, moe" in text
        assert f"relative depth {4 / 7:.3f}" in text

    def test_numbers_of_some_visits_only(self, looped):
        (load,) = [panel for panel in groups(looped)["experts"] if panel.file == "expert_load_cv_pooled"]
        assert figure(load, looped).data[-2].connectgaps
        assert load.metrics == {"pooled": "expert_load_cv.pooled"}


class TestScales:
    def test_fixed_until_numbers_do_not_fit(self):
        scale = Scale(limits=(0.0, 1.0))
        assert scale.holding([0.1, None, 0.9]).limits == (0.0, 1.0)
        assert scale.holding([1.3]).limits == (0.0, 1.5)
        assert scale.holding([-0.02, 31.0]).limits == (-0.02, 40.0)
        assert Scale("log", (1e-2, 1.0)).holding([3e-4, 0.0, 20.0]).limits == (1e-4, 100.0)
        assert Scale().holding([2.3, 0.1]).limits == (0.0, 3.0)
        assert Scale().holding([None]).limits == (0.0, 1.0)

    def test_by_unit(self):
        assert scale_of("attention_sink.mean", "probability").limits == (0.0, 1.0)
        assert scale_of("swap_delta_nats.pairs", "nats / token").kind == "symlog"
        assert scale_of("later_effect.max_all_tokens", "ratio").limits is None

    def test_colours(self):
        values = np.array([[0.2, np.nan], [3.0, 0.4]])
        assert colour_limits(scale_of("causal", "ratio"), values) == (0.0, 1.0)
        assert colour_limits(Scale(), values) == (0.2, 3.0)
        assert colour_limits(Scale(), np.full((2, 2), np.nan)) == (0.0, 1.0)

    def test_symlog(self):
        values = symlog(np.array([-0.09, 0.0, 0.01, 0.99, np.nan]))
        np.testing.assert_allclose(values, [-1.0, 0.0, np.log10(2), 2.0, np.nan])

    def test_figures_hold_the_null_too(self, report):
        panel = panels(report)[1]
        values = [v for v in drawn_values(panel, report) if v is not None]
        low, high = figure(panel, report).layout.yaxis.range
        assert low <= min(values)
        assert max(values) <= high
        assert len(values) == 2 * 3  # the last visit has no later one


def test_one_visit():
    report = evaluate(models.mixing(1), models.tokens())
    assert "Of 1 layers" in report_page(report)
