"""`python -m depthkit export | import | retrofit | moefy`: from folder to folder."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from depthkit import __main__ as program
from depthkit import cli
from depthkit.training import checkpoint, tensors
from depthkit.training.run import train
from tests.interop.helpers import write_run
from tests.utilization.families import family


@pytest.fixture
def say(monkeypatch, tmp_path):
    """Run one command line in an empty folder; returns the exit code."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["depthkit", *map(str, words)])
        return cli.run(program.main)

    return run


def weights(folder):
    return tensors.load(checkpoint.find(Path(folder)) / checkpoint.MODEL)


def test_in_and_out(say, tmp_path, capsys):
    family("llama").save_pretrained(tmp_path / "llama")
    assert say("import", "llama", "train.steps=3", "--out", "run", "train.lr=1.0e-3") == 0
    assert "train it with python train.py run/config.yaml" in capsys.readouterr().out
    train_config = checkpoint.load("run").config.train
    assert (train_config.steps, train_config.lr) == (3, 1e-3)
    assert say("export", "run", "out") == 0
    assert capsys.readouterr().out == "out: written as llama\n"
    assert say("export", "run", "out2", "--as", "depthkit") == 0
    assert "written as depthkit: " in capsys.readouterr().out
    assert say("retrofit", "run", "--split", "1/2/1", "--loops", "2", "train.steps=5") == 0
    assert "prelude: layers 0; core: layers 3 to 4; coda: layers 5" in capsys.readouterr().out
    assert checkpoint.load("runs/run-retrofit").model.plan.depth == 6
    assert say("moefy", "llama", "--experts", "3", "--layers", "2") == 0
    assert checkpoint.load("runs/llama-moe").config.model.blocks["dense_moe"].ffn.num_experts == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["import", "."], "not a Hugging Face model"),
        (["export", "nothing", "out"], "no checkpoint"),
        (["retrofit", "nothing/at/all", "--split", "1/1/1"], "not a Hugging Face model"),
    ],
)
def test_mistakes_exit_2(say, words, message, capsys):
    assert say(*words) == 2
    assert message in capsys.readouterr().err


def test_a_name_that_cannot_be_had_exits_2(say, monkeypatch, capsys):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.warns(UserWarning, match="looking for 'nothing'"):
        assert say("import", "nothing") == 2
    assert "no such run, checkpoint or model folder" in capsys.readouterr().err


def test_a_retrofit_trains_in_place_or_as_a_new_run_alike(say, tmp_path):
    ids = np.random.default_rng(0).integers(0, 256, 900).astype("uint16")
    np.save(tmp_path / "ids.npy", ids)
    data = {"corpus": {"kind": "tokens", "path": str(tmp_path / "ids.npy")}, "cache": str(tmp_path / "cache")}
    write_run(tmp_path / "run", data=data, depth=4)
    words = ["train.steps=3", "train.batch_size=2", "train.device=cpu"]
    assert say("retrofit", "run", "--split", "1/2/1", "--out", "out", *words) == 0
    config = checkpoint.load("out").config
    start = weights("out")
    train(config, tmp_path / "new", quiet=True)
    train(config, tmp_path / "out", resume=True, quiet=True)
    found = weights(tmp_path / "new")
    for name, tensor in weights("out").items():
        torch.testing.assert_close(tensor, found[name], rtol=1e-5, atol=1e-7)
    assert any(not torch.equal(tensor, start[name]) for name, tensor in found.items())
