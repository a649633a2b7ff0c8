import json
import shutil

import pytest
import torch

from depthkit.training import checkpoint, tensors
from depthkit.training.run import train
from tests.training.helpers import losses

FILES = ("model.safetensors", "optim.safetensors", "state.json", "manifest.json")


@pytest.fixture(scope="module")
def finished(corpus, tmp_path_factory):
    """A run of 6 steps with checkpoints at 2, 4 and 6."""
    from depthkit import config as configs
    from tests.models import model_dict

    folder = tmp_path_factory.mktemp("finished") / "run"
    config = configs.parse(
        {
            "model": model_dict(vocab=None, head={"tied": True}),
            "data": {"corpus": {"kind": "tokens", "path": str(corpus)}, "sequence_length": 16},
            "train": {"steps": 6, "batch_size": 4, "lr": 1e-2, "threads": 1, "checkpoint_every": 2},
        }
    )
    train(config, folder, quiet=True)
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(finished, tmp_path / "run")


def state_of(folder, step=None):
    return tensors.of_module(checkpoint.load(folder, step).model)


def test_a_loaded_model_is_the_trained_one(finished):
    loaded = checkpoint.load(finished)
    assert (loaded.step, loaded.path.name) == (6, "step_00000006")
    assert loaded.config.model.vocab_size == 257
    assert not loaded.model.training
    assert loaded.model.head.weight is None
    from depthkit.data import open_data
    from depthkit.training.evaluation import evaluate

    data = open_data(loaded.config.data, 0)
    assert data.tokenizer.fingerprint == loaded.tokenizer
    assert evaluate(loaded.model, data, 4).val_loss == losses(finished, "validation", "val_loss")[6]


def test_every_way_to_name_a_checkpoint(finished):
    folder = finished / "checkpoints" / "step_00000004"
    by_step, by_folder = state_of(finished, 4), state_of(folder)
    assert by_step.keys() == by_folder.keys()
    assert all(torch.equal(by_step[name], by_folder[name]) for name in by_step)
    with pytest.raises(checkpoint.CheckpointError, match="no checkpoint of step 5; there are steps 2, 4, 6"):
        checkpoint.load(finished, 5)
    with pytest.raises(checkpoint.CheckpointError, match="no checkpoint"):
        checkpoint.load(finished.parent)


def test_latest_is_the_truth_and_its_absence_means_the_newest(copy):
    checkpoint.set_latest(copy / "checkpoints", 2)
    assert checkpoint.load(copy).step == 2
    (copy / "checkpoints" / "latest").unlink()
    assert checkpoint.load(copy).step == 6
    (copy / "checkpoints" / "latest").write_text("step_six\n")
    with pytest.raises(checkpoint.CheckpointError, match="'step_six' is not the name of a checkpoint"):
        checkpoint.load(copy)


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", [truncate, flip, lambda path: path.unlink()], ids=["cut", "flip", "gone"])
def test_damage_is_named_and_an_intact_checkpoint_offered(copy, name, harm):
    harm(copy / "checkpoints" / "step_00000006" / name)
    with pytest.raises(checkpoint.CheckpointError) as caught:
        checkpoint.load(copy)
    message = str(caught.value)
    assert "step_00000006/" in message
    assert name in message
    assert "checkpoint of step 4 is intact" in message
    assert "--resume-from 4" in message
    assert checkpoint.load(copy, step=4).step == 4


def test_nothing_is_offered_when_nothing_is_intact(copy):
    for step in (2, 4, 6):
        flip(copy / "checkpoints" / f"step_{step:08d}" / "model.safetensors")
    with pytest.raises(checkpoint.CheckpointError, match="no other checkpoint of this run is intact"):
        checkpoint.load(copy)


def test_the_state_holds_what_a_resumed_run_needs_and_is_plain_json(finished):
    state = json.loads((finished / "checkpoints/step_00000006/state.json").read_text())
    assert state["step"] == 6
    assert state["threads"] == 1
    assert state["schedule"] == {"step": 6, "total": 6}
    assert state["data"]["micro_batch"] == 6
    assert {"rng", "tokenizer", "config", "tokens"} <= state.keys()


def save(root, step, keep=2):
    checkpoint.save(root, step, {"w": torch.zeros(2)}, {}, {}, keep)


def test_only_the_last_ones_are_kept(tmp_path):
    for step in (10, 20, 30):
        save(tmp_path, step)
    assert checkpoint.steps(tmp_path) == [20, 30]
    assert checkpoint.latest(tmp_path) == 30


def test_a_future_that_was_given_up_does_not_push_out_the_present(tmp_path):
    for step in (10, 20, 30):
        save(tmp_path, step, keep=3)
    checkpoint.set_latest(tmp_path, 10)
    save(tmp_path, 15, keep=2)
    assert checkpoint.steps(tmp_path) == [10, 15, 20, 30]
    assert checkpoint.latest(tmp_path) == 15


def test_leftovers_of_killed_writers_are_cleaned(tmp_path):
    for name in (".step_00000010.77.tmp", ".step_00000010.77.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text("half")
    save(tmp_path, 10)
    checkpoint.clean(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step_00000010"]


def test_tensors_that_do_not_fit_are_refused(finished):
    model = checkpoint.load(finished).model
    wrong = {**tensors.of_module(model), "embed.weight": torch.zeros(3, 16)}
    with pytest.raises(
        ValueError, match=r"first is 'embed.weight': the model has \(257, 16\), the file \(3, 16\)"
    ):
        tensors.into_module(model, wrong)
