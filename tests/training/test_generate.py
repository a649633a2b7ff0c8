import pytest

from depthkit.__main__ import main
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


def test_bad_input_is_one_message(run, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["depthkit", "generate", str(tmp_path / "none")])
    with pytest.raises(ValueError, match="no checkpoint"):
        main()
