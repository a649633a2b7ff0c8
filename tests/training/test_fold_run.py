import pytest
import torch

from depthkit.training import checkpoint
from depthkit.training.fold import fold_run
from depthkit.training.run import train
from tests.models import make_ids


def test_a_folded_checkpoint_computes_the_same_without_regulators(run, tmp_path):
    train(run(steps=3, model={"regulators": ["lns"]}), tmp_path / "run", quiet=True)
    fold_run(tmp_path / "run", tmp_path / "folded")
    before, after = checkpoint.load(tmp_path / "run"), checkpoint.load(tmp_path / "folded")
    assert after.config.model.regulators == []
    assert after.step == before.step
    ids = make_ids(vocab=before.model.vocab_size)
    with torch.no_grad():
        logits = [m.head(m(ids).hidden, m.head.weight) for m in (before.model, after.model)]
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="already holds checkpoints"):
        fold_run(tmp_path / "run", tmp_path / "folded")
