"""The utilization benchmark: equal losses, the promised number of layer evaluations, tables and goals."""

import pytest
import torch

from benchmarks import utilization as bench
from benchmarks.bench.cli import Options
from benchmarks.bench.report import Report


def test_quick():
    report = Report("utilization", "", "", quick=True)
    bench.fill(Options(quick=True, rounds=1, only=("256x32-8", "64x128")), report)
    evals = [found["layer_evals"] for found in report.measurements]
    assert (
        [each["sweep"] for each in evals] == [each["report"] for each in evals] == [6 * 7 // 2, 9 * 10 // 2]
    )
    assert [each[bench.LOOP] for each in evals] == [6 * 7, 9 * 10]
    assert all(found["off"]["replay"] == 0 for found in report.measurements)
    assert all(len(times) == 1 for found in report.measurements for times in found["seconds"].values())
    assert [goal.bound for goal in report.goals] == [1.75, 1.9, 1.75, 1.9]
    assert all(goal.value > 0 for goal in report.goals)
    assert report.tables[0].shown()[0][:2] == ["16x6 V64 2x8", "21 / 42"]


def test_other_losses_are_an_error():
    model, data = bench.make(bench.QUICK["256x32"])
    (replayed, _), (stacked, _) = (bench.sweep(model, data, 1024, way) for way in (False, True))
    wanted = bench.hook_loop(model, data)
    assert len(wanted) == 7
    assert len({float(each.sum()) for each in wanted}) == 7
    bench.compare(wanted, replay=replayed, stacked=stacked)
    with pytest.raises(SystemExit, match="not those of the hook loop"):
        bench.compare(wanted, stacked=stacked + 1e-3)
    with pytest.raises(SystemExit, match="not those of the hook loop"):
        bench.compare(wanted, replay=torch.nextafter(replayed, torch.tensor(9.0)))


def test_a_shape_that_cannot_be_stacked_is_an_error():
    with (
        pytest.raises(SystemExit, match="nothing was stacked"),
        pytest.warns(UserWarning, match="replay.stack"),
    ):
        bench.measure(bench.QUICK["256x32"]._replace(tokens=16), 1)
