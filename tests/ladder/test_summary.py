"""The page, the pictures and the table of a ladder, from results that are chosen."""

import csv
import io
import math

import pytest

from depthkit.ladder.compare import Interval
from depthkit.ladder.figures import MOST_FACETS, Panel, Series, bands
from depthkit.ladder.hparams import save_hparams
from depthkit.ladder.markdown import summary_markdown
from depthkit.ladder.page import figure, summary_page
from depthkit.ladder.panels import panels
from depthkit.ladder.plots import draw
from depthkit.ladder.summary import Summary
from depthkit.ladder.table import rows_csv
from tests.ladder.results import make_results

METHODS = {"plain": {"model.regulators": []}, "lns": {"model.regulators": ["lns"]}}
AXES = {"method": METHODS, "depth": [2, 4], "seed": [0, 1]}
RATES = {"learning_rate": {"kind": "swept", "values": [0.001, 0.01]}}


def loss(place):
    return 3.0 + 0.1 * place["seed"] - 0.01 * place["depth"] + 10 * place.get("train.lr", 0.0)


def curve(place):
    return [(step, 5.0 - math.log(step)) for step in (1, 2, 4)]


@pytest.fixture(scope="module")
def summary():
    failed = ["method-lns_depth-4_lr-0.01_seed-1"]
    return Summary(make_results(loss, curve, failed, axes=AXES, fairness=RATES), ["old-rung"])


def test_every_question_has_a_picture(summary):
    found = {panel.file: panel for panel in panels(summary)}
    assert list(found) == [
        "loss",
        "sensitivity",
        "best_rate",
        "compute",
        "training",
        "effective_depth",
        "used",
        "variance",
        "ablation",
        "later_effect",
    ]
    lines = found["loss"].facets[""]
    assert [(line.name, line.x) for line in lines] == [("plain", [2.0, 4.0]), ("lns", [2.0, 4.0])]
    assert lines[0].points[1].mean == pytest.approx(3.05 - 0.04 + 0.01)
    assert set(found["sensitivity"].facets) == {"depth 2", "depth 4"}
    assert found["sensitivity"].facets["depth 2"][0].x == [0.001, 0.01]
    assert found["variance"].facets["depth 4"][0].x == [0.0, 1 / 3, 2 / 3, 1.0]
    assert [p.mean for line in found["effective_depth"].facets[""] for p in line.points] == [1, 2, 1, 2]
    assert found["training"].facets["depth 2"][0].x[-1] == 4 * 2 * 16  # steps x sequences x length


def test_a_line_has_one_colour_in_all_pictures(summary):
    found = [panel.colours() for panel in panels(summary)]
    assert [list(colours) for colours in found].count(
        ["lns"]
    ) == 1  # the baseline is not drawn against itself
    assert len({colours["lns"] for colours in found}) == 1
    assert found[0]["plain"] != found[0]["lns"]


@pytest.mark.parametrize("index", range(10))
def test_pictures_can_be_drawn_both_ways(summary, index):
    panel = panels(summary)[index]
    assert len(draw(panel).axes) == len(panel.facets)
    assert len(figure(panel).data) >= len(panel.facets)


def test_the_page_says_what_was_found_what_is_missing_and_how_it_was_tested(summary):
    page = summary_page(summary)
    for lines in summary.sentences().values():
        for line in lines:
            assert line.split("'")[0].split("<")[0] in page
    assert "Benjamini-Hochberg" in page
    assert "no longer in the ladder: old-rung" in page
    assert "method-lns_depth-4_lr-0.01_seed-1: failed: no luck" in page
    assert "best lr" in page


def test_the_markdown_has_every_sentence_and_what_is_compared_across_or_down(summary):
    text = summary_markdown(summary)
    assert all(f"- {line}" in text for lines in summary.sentences().values() for line in lines)
    assert "method-lns_depth-4_lr-0.01_seed-1: failed: no luck" in text
    table = text.split("\n\n")[1].splitlines()
    assert table[0] == "|  | plain | lns |"
    assert table[2].startswith("| depth 2 | 3.040 ± ")
    many = {name: {"model.embedding_std": 0.1 * i} for i, name in enumerate("abc", 1)}
    wide = make_results(loss, axes={"method": many, "depth": [2], "seed": [0, 1]}, compare=[])
    table = summary_markdown(Summary(wide)).split("\n\n")[1].splitlines()
    assert [line.split(" | ")[0] for line in table] == ["| ", "| ---", "| a", "| b", "| c"]


def test_a_ladder_of_replicates_alone_has_one_number():
    table = summary_markdown(Summary(make_results(lambda place: 3.0, axes={"seed": [0, 1]}, compare=[])))
    assert table.split("\n\n")[1].splitlines()[0] == "|  | seed |"


def test_the_table_has_a_row_a_rung(summary):
    rows = list(csv.DictReader(io.StringIO(rows_csv(summary.results))))
    assert [row["rung"] for row in rows] == [row.rung.name for row in summary.results.rows]
    assert [row["status"] for row in rows].count("failed") == 1
    done = [row for row in rows if row["status"] == "finished"]
    for row in done:
        place = {"seed": int(row["seed"]), "depth": int(row["depth"]), "train.lr": float(row["lr"])}
        assert float(row["loss_nats"]) == pytest.approx(loss(place))
        assert int(row["visits"]) == int(row["depth"])
        assert float(row["n_eff_entropy.ablation"]) == int(row["depth"]) / 2


def test_pictures_of_many_facets_show_the_deepest_models():
    axes = {**AXES, "model.embedding_std": [0.1, 0.2, 0.3, 0.4]}
    found = {panel.file: panel for panel in panels(Summary(make_results(loss, axes=axes)))}
    assert list(found["variance"].facets) == [f"depth 4, embedding_std {std}" for std in (0.1, 0.2, 0.3, 0.4)]
    assert len(found["loss"].facets) == 4 <= MOST_FACETS


def test_a_ladder_of_depths_alone_tells_them_apart_by_colour():
    results = make_results(loss, axes={"depth": [2, 4], "seed": [0, 1]}, compare=[])
    found = {panel.file: panel for panel in panels(Summary(results))}
    assert [line.name for line in found["variance"].facets[""]] == ["depth 2", "depth 4"]
    assert [line.x for line in found["loss"].facets[""]] == [[2.0, 4.0]]


def test_axes_that_advance_together_are_one_axis_of_a_picture():
    zipped = {"depth": [2, 4], "model.embedding_std": [0.1, 0.2]}
    axes = {"method": METHODS, **zipped, "seed": [0, 1]}
    results = make_results(loss, axes=axes, zips=[list(zipped)])
    found = {panel.file: panel for panel in panels(Summary(results))}
    assert [line.x for line in found["loss"].facets[""]] == [[2.0, 4.0], [2.0, 4.0]]


def test_a_summary_without_a_finished_rung_is_a_page_too():
    results = make_results(loss, axes={"seed": [0]}, compare=[], failed=["seed-0"])
    assert "failed" in summary_page(Summary(results))
    assert panels(Summary(results)) == []
    assert "(nothing finished)" in summary_markdown(Summary(results))


def test_512_visits_are_a_line_with_a_band_not_a_forest_of_bars():
    results = make_results(loss, axes={"depth": [512], "seed": [0, 1]}, compare=[])
    (panel,) = [panel for panel in panels(Summary(results)) if panel.file == "variance"]
    band, line = figure(panel).data
    assert line.mode == "lines"
    assert len(line.x) == 512
    assert band.fill == "toself"
    assert len(figure(panel).to_json()) < 200_000


def test_bands_stay_on_a_logarithmic_picture():
    means, low, high = bands([Interval(1e-6, -1.0, 1.0, 3), Interval(2.0, -1.0, 3.0, 3)], floor=1e-4)
    assert means == [1e-4, 2.0]
    assert low == [1e-4, 0.2]
    assert high == [1.0, 3.0]


def test_intervals_far_wider_than_the_means_lie_apart_are_cut_off():
    def panel(*points):
        line = Series("a", 0, [float(i) for i in range(len(points))], list(points))
        return Panel("f", "t", "x", "y", facets={"": [line]})

    inside = panel(Interval(1.0, 0.9, 1.1, 3), Interval(2.0, 1.8, 2.2, 3))
    assert inside.limits() == pytest.approx([0.85, 2.25])
    wide = panel(Interval(1.0, -40.0, 42.0, 2), Interval(2.0, 1.8, 2.2, 3))
    assert wide.limits() == pytest.approx([-0.05, 3.05])


def test_tensorboard_gets_a_session_a_rung(summary, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):
        save_hparams(summary.results, tmp_path)
        files = list(tmp_path.rglob("events*"))
    sessions = sorted(path.name for path in tmp_path.iterdir())
    assert sessions == sorted(row.rung.name for row in summary.results.rows if row.report)
    events = EventAccumulator(str(tmp_path / sessions[0])).Reload()
    assert "rung/loss_nats" in events.Tags()["scalars"]
    assert len(files) == 2 * len(sessions)  # writing them again replaced them
