"""The windows a pretrained model reads: its own tokenizer or token files, bos in front of each, limits."""

import json

import numpy as np
import pytest
import torch

from depthkit.interop import hf
from depthkit.interop.text import windows
from depthkit.utilization import Sequences
from depthkit.utilization.options import EvalOptions
from depthkit.utilization.sequences import IGNORED, with_bos
from tests.utilization.families import family

BOS = 1


def options(**settings):
    return EvalOptions.model_validate({"sequences": 3, "sequence_length": 8, **settings})


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A model without a tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "bare"
    family("llama").save_pretrained(folder)
    return hf.load(str(folder), options())


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    """A model with a byte-level tokenizer of 97 ids that has a bos."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("models") / "spoken"
    family("llama").save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[:93]
    vocab = {word: i for i, word in enumerate(["<pad>", "<s>", "</s>", "?", *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    return hf.load(str(folder), options())


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def text_file(tmp_path, text="In the beginning was the word, and then there was more of it. " * 4):
    path = tmp_path / "text.txt"
    path.write_text(text)
    return str(path)


def test_a_text_opens_every_window_with_bos(spoken, tmp_path):
    found = windows(spoken, options(data=text_file(tmp_path)))
    assert found.ids.shape == (3, 8)
    assert (found.ids[:, 0] == BOS).all()
    assert found.describe()["bos"] == BOS
    assert found.describe()["name"].endswith("text.txt")
    assert (found.ids[:, 1:-1] != BOS).all()
    scored = found.targets != IGNORED
    assert torch.equal(found.ids[:, 1:][scored[:, :-1]], found.targets[:, :-1][scored[:, :-1]])


def test_no_bos_when_told(spoken, tmp_path):
    found = windows(spoken, options(data=text_file(tmp_path), bos="none"))
    assert found.describe()["bos"] is None
    assert int((found.ids[:, 0] == BOS).sum()) <= 1  # where the document itself begins


@pytest.mark.parametrize("suffix", [".npy", ".bin"])
def test_token_files_need_no_tokenizer(bare, tmp_path, suffix):
    ids = np.random.default_rng(0).integers(0, 97, 100).astype(np.uint16)
    path = tmp_path / f"tokens{suffix}"
    np.save(path, ids) if suffix == ".npy" else ids.tofile(path)
    found = windows(bare, options(data=str(path), sequences=100))
    assert found.num_scored == 99  # each token but the first, once
    assert found.describe()["bos"] is None
    assert torch.equal(found.ids[0], torch.from_numpy(ids[:8].astype(np.int64)))
    assert (windows(bare, options(data=str(path), bos=5)).ids[:, 0] == 5).all()


def test_whole_data_settings(bare, tmp_path):
    np.save(tmp_path / "ids.npy", np.arange(90))
    settings = {"corpus": {"kind": "tokens", "path": str(tmp_path / "ids.npy"), "validation_fraction": 0.5}}
    found = windows(bare, options(data=settings, sequences=100))
    assert int(found.ids.min()) == 0 or int(found.ids[0, 0]) == 45
    assert found.num_scored == 44


def test_one_document_is_enough(spoken, tmp_path):
    found = windows(spoken, options(data=text_file(tmp_path, "only one"), sequence_length=4))
    assert found.num_scored >= 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sequence_length": 300}, "sequence_length=300: longer than the model's context of 256"),
        ({"data": "kjw"}, "did you mean 'kjv'"),
        ({"data": "words.csv"}, "a .npy file"),
        ({"data": "missing.npy"}, "missing"),
        ({"data": "kjv"}, r"has no tokenizer\.json.*data=tokens\.npy"),
        ({"data": {"corpsu": "kjv", "tokenizer": "bytes"}}, "did you mean 'corpus'"),
    ],
)
def test_mistakes(bare, settings, message):
    with pytest.raises(ValueError, match=message):
        windows(bare, options(**settings))


def test_ids_beyond_the_embedding(bare, tmp_path):
    np.save(tmp_path / "ids.npy", np.array([1, 2, 97] * 20))
    with pytest.raises(ValueError, match="id 97 at position 2 is outside"):
        windows(bare, options(data=str(tmp_path / "ids.npy")))


def test_bos_moves_a_window_on_by_one_and_scores_nothing_new():
    ids = torch.tensor([[7, 8, 9, 10], [BOS, 4, 5, 6], [3, 2, 0, 0]])
    targets = torch.tensor([[8, 9, 10, 11], [4, 5, 6, 7], [2, IGNORED, IGNORED, IGNORED]])
    documents = torch.tensor([[0, 0, 0, 1], [0, 0, 0, 0], [2, 2, -1, -1]])
    found = with_bos(Sequences.of_targets(ids, targets, documents), BOS)
    assert found.ids.tolist() == [[BOS, 7, 8, 9], [BOS, 4, 5, 6], [BOS, 3, 2, 0]]
    assert found.targets.tolist() == [
        [IGNORED, 8, 9, 10],
        [4, 5, 6, 7],
        [IGNORED, 2, IGNORED, IGNORED],
    ]
    assert found.mask.tolist() == [[True] * 4, [True] * 4, [True, True, False, False]]
    assert found.documents.tolist() == [[0, 0, 0, 0], [0, 0, 0, 0], [2, 2, 2, -1]]
