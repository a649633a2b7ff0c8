"""What a launch shows: how far rungs are, how long it will take, and at 512 layers no more than that."""

import io
import json
import sys

import pytest
import torch
from rich.console import Console

from depthkit import config as c
from depthkit.ladder.estimate import Estimator, shallow, shown
from depthkit.ladder.live import Board, clock
from depthkit.ladder.progress import TAIL, Progress, done_share, progress, weight
from depthkit.ladder.state import FINISHED, RungFiles, State
from depthkit.model import Transformer
from tests.ladder.ladders import ladder_dict
from tests.models import make_config, make_ids


@pytest.fixture
def ladder():
    return c.parse(ladder_dict(axes={"depth": [1, 3], "seed": [0]}, compare=[]))


def train_row(step):
    return json.dumps({"event": "train", "step": step, "loss": 3.25, "tok_s": 1234.0}) + "\n"


def files_of(ladder, folder):
    return {rung.name: RungFiles(folder, rung.name) for rung in ladder.rungs()}


def test_progress_is_the_last_whole_training_row(ladder, tmp_path):
    files = files_of(ladder, tmp_path)["depth-1_seed-0"]
    assert progress(files) == Progress()
    files.run.mkdir(parents=True)
    telemetry = json.dumps({"event": "telemetry", "step": 3, "variance": [0.5] * 5000}) + "\n"
    assert len(telemetry) < TAIL
    files.metrics.write_text(train_row(2) + train_row(3) + telemetry + '{"event": "train", "st')
    assert progress(files) == Progress(3, 3.25, 1234.0)


def test_the_share_that_is_done_counts_layer_evaluations(ladder, tmp_path):
    _, deep = ladder.rungs()
    files = files_of(ladder, tmp_path)[deep.name]
    files.run.mkdir(parents=True)
    files.metrics.write_text(train_row(2))
    training, evaluation = 3 * 3 * 4 * 2 * 16, 6 * 4 * 16  # visits x tokens; L(L+1)/2 x windows
    assert weight(deep, ladder.evaluate) == training + evaluation
    assert done_share(deep, files, ladder.evaluate) == pytest.approx(training / 2 / (training + evaluation))
    files.write(State(FINISHED))
    assert done_share(deep, files, ladder.evaluate) == 1.0


def test_the_live_table_shows_what_runs_what_waits_and_the_time(ladder, tmp_path):
    files = files_of(ladder, tmp_path)
    (tmp_path / "rungs" / "depth-3_seed-0").mkdir(parents=True)
    files["depth-3_seed-0"].metrics.write_text(train_row(3))
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    board = Board(ladder.rungs(), files, ladder.evaluate, console)
    board._before = 0.0  # as if the three steps had been taken in this launch
    with board:
        board.update({"depth-3_seed-0"})
    text = console.file.getvalue()
    assert "3/4" in text
    assert "3.250" in text
    assert "1 running, 1 waiting" in text
    assert "left" in text


def test_clock_and_times_are_short():
    assert [clock(s) for s in (5, 65, 3723)] == ["0:05", "1:05", "1:02:03"]
    assert [shown(s) for s in (12, 204, 18720, 1.3e6)] == ["12 s", "3.4 min", "5.2 h", "15 days"]


def test_an_estimate_grows_with_steps_and_depth_and_each_kind_is_timed_once(ladder, monkeypatch):
    timed = []
    real = Transformer.__init__
    monkeypatch.setattr(
        Transformer, "__init__", lambda self, *a, **k: (timed.append(1), real(self, *a, **k))[1]
    )
    estimator = Estimator()
    runs = [rung.config.with_vocabulary(257) for rung in ladder.rungs()]
    few, many = (estimator.seconds(run, ladder.evaluate) for run in runs)
    longer = runs[1].model_copy(update={"train": runs[1].train.model_copy(update={"steps": 4000})})
    assert few < many < estimator.seconds(longer, ladder.evaluate)
    assert len(timed) == 4  # two twins for each length of training


def test_large_models_are_reckoned_without_being_built(ladder, monkeypatch):
    monkeypatch.setattr("depthkit.ladder.estimate.LARGEST", 0.0)
    monkeypatch.setattr(Transformer, "__init__", lambda *a, **k: pytest.fail("built"))
    run = ladder.rungs()[0].config.with_vocabulary(257)
    assert Estimator().seconds(run, ladder.evaluate) > 0


def test_a_twin_has_each_pattern_so_many_times():
    config = make_config(depth=7, loops=5)
    assert [shallow(config, n).plan().depth for n in (1, 3)] == [1, 3]


def calls(work):
    """Python calls that `work` makes, and the deepest nesting of them."""
    count = deepest = depth = 0

    def watch(frame, event, argument):
        nonlocal count, deepest, depth
        if event == "call":
            count, depth = count + 1, depth + 1
            deepest = max(deepest, depth)
        elif event == "return":
            depth -= 1

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count, deepest


@pytest.mark.parametrize("regulators", [[], ["lns"], ["layer_rope"]])
def test_starting_and_running_are_linear_in_depth_and_do_not_nest(regulators):
    def build_and_run(depth):
        config = make_config(depth=depth, dim=8, regulators=regulators)
        with torch.no_grad():
            Transformer(config)(make_ids(1, 2))

    build_and_run(2)
    (few, shallow_nesting), (many, deep_nesting) = (calls(lambda d=d: build_and_run(d)) for d in (32, 128))
    assert many < 4.4 * few
    assert deep_nesting <= shallow_nesting + 4
