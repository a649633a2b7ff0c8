"""The shipped task does what it is for: sharing a layer over loops answers a number of hops never trained on."""

from pathlib import Path

import pytest

from depthkit import config as configs
from depthkit.training import metrics
from depthkit.training.run import train

TASKS = Path(__file__).parents[2] / "configs" / "tasks"


def accuracies(name, folder):
    train(configs.load(TASKS / f"{name}.yaml", ["seed=0"]), folder, quiet=True)
    (end,) = metrics.read(folder / "metrics.jsonl", "end")
    return end["accuracy_by_hops"]


@pytest.mark.slow
def test_a_shared_layer_answers_hops_it_was_not_trained_on(tmp_path):
    found = accuracies("hops_looped", tmp_path)
    assert all(found[hops] > 0.95 for hops in "123456")


@pytest.mark.slow
def test_layers_of_their_own_do_not(tmp_path):
    found = accuracies("hops_unshared", tmp_path)
    assert found["1"] > 0.95
    assert found["6"] > 0.9
    assert found["4"] < 0.5


@pytest.mark.slow
def test_a_shared_layer_answers_one_hop_more_than_it_was_trained_on(tmp_path):
    assert accuracies("hops_looped_extrapolation", tmp_path)["4"] > 0.9
