"""Compiled training."""

import pytest

from depthkit.training.run import train
from tests.training.helpers import losses


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiled_run_follows_the_eager_one(run, tmp_path):
    for compiled in (False, True):
        train(run(steps=4, compile=compiled), tmp_path / str(compiled), quiet=True)
    assert losses(tmp_path / "True") == pytest.approx(losses(tmp_path / "False"), rel=1e-4)
