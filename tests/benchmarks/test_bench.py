"""What the speed benchmarks share: timing, limits, reports, the page."""

import math

import pytest
import torch

from benchmarks.bench import limit, page
from benchmarks.bench.experts import Balanced, Problem, difference, ours
from benchmarks.bench.process import peak, resident
from benchmarks.bench.report import Goal, Report, Table, load
from benchmarks.bench.shapes import SHAPES, Shape
from benchmarks.bench.timing import Spread, interleave, line, ratio, spread, total
from depthkit.files import write_json


class Clock:
    """Time that steps let pass."""

    def __init__(self):
        self.now, self.order = 0.0, []

    def __call__(self):
        return self.now

    def step(self, name, *seconds):
        durations = iter(seconds)

        def take():
            self.order.append(name)
            self.now += next(durations)

        return take


def test_candidates_take_turns_and_the_warm_up_does_not_count():
    clock = Clock()
    steps = {"a": clock.step("a", 100, 1, 2, 4), "b": clock.step("b", 50, 2, 2, 2)}
    times = interleave(steps, rounds=3, warm_up=1, clock=clock)
    assert clock.order == ["a", "b"] * 4
    assert times == {"a": [1, 2, 4], "b": [2, 2, 2]}


def test_ratios_are_paired_by_round():
    # The machine is twice as slow in the second round; within each round b takes three times as long.
    a, b = [1.0, 2.0, 1.0, 1.0, 1.5], [3.0, 6.0, 3.0, 3.0, 4.5]
    assert ratio(b, a) == (3, 3, 3)
    assert spread([5, 1, 2, 3, 4]) == Spread(2, 3, 4)
    assert spread([7.0]) == (7, 7, 7)
    assert ratio([1, 2, 3, 4, 5], [1] * 5) == Spread(2, 3, 4)
    assert total([1, 2], [10, 20]) == [11, 22]
    with pytest.raises(ValueError, match="zip"):
        ratio([1], [1, 2])


def test_a_line_is_found_and_its_distance_from_what_is_none():
    slope, intercept, deviation = line([8, 64, 512], [3 + 2 * x for x in (8, 64, 512)])
    assert (slope, intercept) == (pytest.approx(2), pytest.approx(3))
    assert deviation < 1e-12
    assert line([8, 64, 512], [8**2, 64**2, 512**2]).deviation > 0.5


def test_the_shapes_are_those_of_the_tables():
    assert [(s.dim, s.depth, s.heads, s.kv_heads, s.hidden) for s in SHAPES.values()] == [
        (64, 256, 2, 1, 176),
        (128, 64, 4, 2, 344),
        (256, 16, 8, 4, 688),
    ]
    batch = Shape(64, 1).data()
    assert torch.equal(batch.ids[:, 1:], batch.targets[:, :-1])
    assert batch.num_scored == Shape(64, 1).tokens == 1024


def test_the_limit_multiplies_right_and_is_scaled_to_the_depth():
    product = limit.Product(5, 3, 4, torch.float32)
    product()
    x, w = product.x.clone().requires_grad_(), product.w.clone().requires_grad_()
    (x @ w.T).backward(product.dy)
    for found, expected in ((product.y, x @ w.T), (product.dx, x.grad), (product.dw, w.grad)):
        torch.testing.assert_close(found, expected.detach())
    for shape in (Shape(64, 24, batch=1, length=8), Shape(128, 2, batch=1, length=8, precision="bf16")):
        parts = limit.parts(shape)
        for part in parts.values():
            part()
        times = {limit.LAYERS: [1.0, 2.0], limit.ATTENTION: [10.0, 10.0], limit.HEAD: [0.5, 0.5]}
        scale = 3 if shape.depth == 24 else 1
        assert limit.whole(times, shape) == [11 * scale + 0.5, 12 * scale + 0.5]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_expert_backends_agree_and_other_weights_do_not(precision):
    problem = Problem(4, 24, precision, dim=16, hidden=24)
    drawn = problem.draw()
    grouped, loop = ours(drawn, "grouped"), ours(drawn, "loop")
    assert difference(loop, grouped) <= (1e-5 if precision == "fp32" else 2e-2)
    wrong = ours({**drawn, "weights": drawn["weights"].flip(-1)}, "loop")
    assert difference(wrong, grouped) > 0.1
    assert {p.y.shape for p in Balanced(problem).products} == {(12, 48), (12, 16)}


def test_memory_is_measured_in_mebibytes():
    assert 50 < resident() <= peak() < 2**20


def make_report(**changes):
    goals = [
        Goal("fast", "at least", 1.0, 2.0),
        Goal("small", "at most", 3.0, 4.0),
        Goal("new", "at most", 1.0, None),
    ]
    table = Table("Times", ["", "ms"], [["depthkit", 1.234], ["peer", None]])
    return Report("toy", "What it is.", "python -m benchmarks.toy", tables=[table], goals=goals, **changes)


def test_goals_have_verdicts():
    assert [goal.verdict for goal in make_report().goals] == ["met", "not met", "not measured"]
    assert Goal("", "at least", 1.0, math.nan).met is False


def test_the_page_has_tables_and_names_what_is_not_met(tmp_path):
    path = tmp_path / "toy.json"
    make_report(notes=["a note"]).save(path)
    page.main(tmp_path / "page.md", [path])
    written = (tmp_path / "page.md").read_text()
    assert "| depthkit | 1.23 |" in written
    assert "| peer | - |" in written
    assert "- small: 4.00, at most 3 is the goal; not met" in written
    assert "- new: at most 1 is the goal; not measured" in written
    assert "- fast" not in written
    assert f"torch {torch.__version__}" in written
    assert "{" not in written.replace("{torch", "")
    assert load(page.json.loads(path.read_text())) == make_report(notes=["a note"])


def test_the_page_refuses_quick_results_and_other_files(tmp_path):
    make_report(quick=True).save(tmp_path / "quick.json")
    write_json(tmp_path / "other.json", [1])
    with pytest.raises(ValueError, match="--quick"):
        page.read(tmp_path / "quick.json")
    with pytest.raises(ValueError, match="not the JSON of a benchmark"):
        page.read(tmp_path / "other.json")
