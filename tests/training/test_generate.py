import pytest
import torch

from depthkit.__main__ import main
from depthkit.data import open_data
from depthkit.model.generate import Sampling, generate
from depthkit.training import checkpoint
from depthkit.training.generate import continuation
from depthkit.training.run import train


def test_a_run_continues_a_prompt(run, tmp_path, monkeypatch, capsys):
    train(run(steps=2), tmp_path / "run", quiet=True)
    words = ["depthkit", "generate", str(tmp_path / "run"), "--prompt", "In the ", "--tokens", "12"]
    monkeypatch.setattr("sys.argv", words)
    assert main() == 0
    first = capsys.readouterr().out
    assert first.startswith("In the ")
    assert len(first) > len("In the \n")
    assert main() == 0
    assert capsys.readouterr().out == first


def test_pieces_make_the_text_of_the_tokens(run, tmp_path):
    train(run(steps=2), tmp_path / "run", quiet=True)
    loaded = checkpoint.load(tmp_path / "run")
    tokenizer = open_data(loaded.config.data, loaded.config.seed).tokenizer
    prompt = [*([] if tokenizer.bos is None else [tokenizer.bos]), *tokenizer.encode("And ")]
    sampling = Sampling(temperature=1.0, seed=3)
    made = [int(token) for token in generate(loaded.model, torch.tensor([prompt]), 24, sampling)]
    pieces = list(continuation(tmp_path / "run", "And ", 24, sampling))
    assert "".join(pieces) == tokenizer.decode(made).rstrip("\N{REPLACEMENT CHARACTER}")
    assert len(pieces) > 1


def test_bad_input_is_one_message(run, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["depthkit", "generate", str(tmp_path / "none")])
    with pytest.raises(ValueError, match="no checkpoint"):
        main()
