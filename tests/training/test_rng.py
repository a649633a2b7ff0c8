"""What draws from PyTorch's own generator draws on in a resumed run."""

import pytest
import torch

from depthkit.training.run import train
from depthkit.training.step import Stepper


@pytest.fixture
def draws(monkeypatch):
    """One number from the generator at every step, by step; `fails` is the step at which a run breaks."""
    real, found = Stepper.take, {}

    def take(self, *args, **kwargs):
        step = args[1]
        if step == found.get("fails"):
            raise RuntimeError("lost")
        found[step] = torch.rand(()).item()
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Stepper, "take", take)
    return found


def test_a_resumed_run_draws_what_the_uninterrupted_one_does(run, tmp_path, draws):
    config = run(steps=4, checkpoint_every=2)
    torch.manual_seed(1)
    train(config, tmp_path / "whole", quiet=True)
    wanted = [draws[step] for step in (1, 2, 3, 4)]
    assert len(set(wanted)) == 4
    draws["fails"] = 4
    torch.manual_seed(1)
    with pytest.raises(RuntimeError, match="lost"):
        train(config, tmp_path / "run", quiet=True)
    draws.clear()
    torch.manual_seed(2)
    train(config, tmp_path / "run", resume=True, quiet=True)
    assert draws == {3: wanted[2], 4: wanted[3]}
