"""`train.init_from`: another run's weights, a fresh optimiser, step 0; what does not fit is named."""

import pytest
import torch

from depthkit.training import checkpoint, tensors
from depthkit.training.run import train
from tests.training.helpers import losses

ADAPTED = {
    "segments": [
        {"name": "trunk", "pattern": ["dense"], "repeat": 2, "loops": 2, "inject": {"kind": "linear"}}
    ]
}


def weights(folder, step=None):
    return tensors.load(checkpoint.find(folder, step) / "model.safetensors")


@pytest.fixture
def first(run, tmp_path):
    """A run of 3 steps."""
    train(run(steps=3), tmp_path / "first", quiet=True)
    return tmp_path / "first"


def test_the_first_loss_is_that_of_the_weights(run, first, tmp_path):
    """With a rate of nearly nothing, the new run's first step sees the old run's last weights."""
    train(run(steps=1, lr=1e-12, init_from=str(first)), tmp_path / "second", quiet=True)
    train(run(steps=1, lr=1e-12), tmp_path / "fresh", quiet=True)
    assert losses(tmp_path / "second")[1] != losses(tmp_path / "fresh")[1]
    for name, tensor in weights(first).items():
        torch.testing.assert_close(weights(tmp_path / "second")[name], tensor, rtol=0, atol=1e-8)
    assert checkpoint.load(tmp_path / "second").step == 1


def test_an_earlier_checkpoint_can_be_named(run, tmp_path):
    train(run(steps=2, checkpoint_every=1), tmp_path / "first", quiet=True)
    source = checkpoint.find(tmp_path / "first", 1)
    train(run(steps=1, lr=1e-12, init_from={"path": str(source)}), tmp_path / "second", quiet=True)
    name = "layers.0.mixer.branch.q.weight"
    torch.testing.assert_close(
        weights(tmp_path / "second")[name], weights(tmp_path / "first", 1)[name], rtol=0, atol=1e-8
    )


def test_missing_weights_are_refused_by_name_or_left_as_initialised(run, first, tmp_path):
    with pytest.raises(
        ValueError, match=r"lacks recurrences\.trunk\.inject\.adapter\.weight; train\.init_from\.strict=false"
    ):
        train(run(steps=1, model=ADAPTED, init_from=str(first)), tmp_path / "second", quiet=True)
    loose = {"path": str(first), "strict": False}
    with pytest.warns(UserWarning, match=r"lacks recurrences\.trunk\.inject\.adapter\.weight"):
        train(run(steps=1, lr=1e-12, model=ADAPTED, init_from=loose), tmp_path / "third", quiet=True)
    found = weights(tmp_path / "third")
    assert found["recurrences.trunk.inject.adapter.weight"].std() > 0.01
    torch.testing.assert_close(found["embed.weight"], weights(first)["embed.weight"], rtol=0, atol=1e-8)


def test_surplus_weights_are_named(run, first, tmp_path):
    model = {"segments": [{"name": "trunk", "pattern": ["dense"]}]}
    with pytest.raises(
        ValueError, match=r"has, beyond this model, layers\.1\.ffn\.before\.weight, .* and 6 more"
    ):
        train(run(steps=1, model=model, init_from=str(first)), tmp_path / "second", quiet=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"dim": 32}}, r"embed\.weight is \[257, 16\] in .* and \[257, 32\] in this model"),
        ({"data": {"tokenizer": {"kind": "ids", "vocab_size": 257}}}, "was trained with another tokenizer"),
    ],
)
def test_what_does_not_fit_is_refused(run, first, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        train(
            run(steps=1, init_from={"path": str(first), "strict": False}, **changes),
            tmp_path / "second",
            quiet=True,
        )


def test_nothing_there(run, tmp_path):
    with pytest.raises(ValueError, match=r"train\.init_from: .*: no checkpoint"):
        train(run(steps=1, init_from=str(tmp_path / "none")), tmp_path / "second", quiet=True)


def test_a_resumed_run_goes_on_from_its_own_checkpoint(run, first, tmp_path):
    config = run(steps=4, checkpoint_every=2, init_from=str(first))
    train(config, tmp_path / "whole", quiet=True)
    train(config, tmp_path / "parted", quiet=True)
    for file in first.rglob("model.safetensors"):
        file.unlink()  # no longer needed
    train(config, tmp_path / "parted", resume=2, quiet=True)
    assert losses(tmp_path / "parted") == losses(tmp_path / "whole")
