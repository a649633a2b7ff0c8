"""Measurements of what telemetry costs, and of compiled training."""

import statistics
import time

import pytest

from depthkit.training import optim
from depthkit.training.run import train
from depthkit.training.telemetry import DepthTelemetry
from tests.training.helpers import losses


def seconds(trainer, step, telemetry):
    began = time.process_time()
    batch = next(trainer.data.train(8, start=step))
    trainer.stepper.take([batch], step, telemetry)
    if telemetry is not None:
        telemetry.row()
    return time.process_time() - began


@pytest.mark.bench
@pytest.mark.parametrize(("depth", "dim", "length"), [(8, 32, 64), (32, 64, 64), (4, 64, 256)])
def test_a_telemetry_step_costs_at_most_half_a_step_more(make_trainer, capsys, depth, dim, length):
    trainer = make_trainer(model={"depth": depth, "dim": dim}, data={"sequence_length": length})
    optim.set_lr(trainer.optimizer, 1e-3)
    pairs = [
        (seconds(trainer, step, None), seconds(trainer, step, DepthTelemetry())) for step in range(1, 25)
    ]
    ratio = statistics.median(watched / plain for plain, watched in pairs[4:])
    with capsys.disabled():
        print(f"\ndepth {depth} dim {dim} length {length}: a telemetry step costs {ratio:.2f} plain steps")
    assert ratio < 1.5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_compiled_run_follows_the_eager_one(run, tmp_path):
    for compiled in (False, True):
        train(run(steps=4, compile=compiled), tmp_path / str(compiled), quiet=True)
    assert losses(tmp_path / "True") == pytest.approx(losses(tmp_path / "False"), rel=1e-4)
