import errno
import hashlib
import json
import os
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from depthkit.data import TOKENIZERS
from depthkit.data.corpora.files import TextFiles


def build(corpus=None, folder=Path("/nowhere"), **fields):
    config = TOKENIZERS.get(fields.pop("kind")).Config(**fields)
    return config.component(config, corpus, folder)


@given(st.text())
def test_bytes_round_trip(text):
    tokenizer = build(kind="bytes")
    ids = tokenizer.encode(text)
    assert tokenizer.decode([256, *ids]) == text
    assert tokenizer.byte_lengths[ids].sum() == len(ids) == len(text.encode())


def test_bytes_are_257_ids():
    tokenizer = build(kind="bytes")
    assert (tokenizer.vocab_size, tokenizer.bos, len(tokenizer.byte_lengths)) == (257, 256, 257)
    assert tokenizer.byte_lengths[256] == 0
    assert tokenizer.decode([0xFF, 104, 105]) == "�hi"


@pytest.fixture
def corpus(jsonl, words):
    return TextFiles(TextFiles.Config(paths=[jsonl(words)]))


@pytest.fixture
def bpe(corpus, tmp_path):
    return build(corpus, tmp_path, kind="bpe", vocab_size=300)


@pytest.mark.filterwarnings("ignore:data.tokenizer.vocab_size")  # one of the texts has few tokens to learn
def test_bpe_learns_from_the_training_split_alone(jsonl, words, tmp_path):
    paths = [jsonl(words, "train.jsonl"), jsonl(["zqzqzqzq " * 500], "validation.jsonl")]
    for train, learned in (paths, False), (paths[::-1], True):
        corpus = TextFiles(TextFiles.Config(paths=train[:1], validation=train[1:]))
        tokenizer = build(corpus, tmp_path, kind="bpe", vocab_size=300)
        assert any("zq" in token for token in tokenizer._tokenizer.get_vocab()) == learned


@pytest.mark.parametrize(
    "text", ["document 3: plain words end.", "naïve café", "日本語 🙂", "<bos> is text", " a\n\tb "]
)
def test_bpe_round_trips_and_counts_bytes(bpe, text):
    ids = bpe.encode(text)
    assert bpe.decode([bpe.bos, *ids]) == text
    assert bpe.byte_lengths[ids].sum() == len(text.encode())
    assert bpe.byte_lengths[bpe.bos] == 0


def test_bpe_compresses_and_has_the_size_asked_for(bpe, words):
    assert bpe.vocab_size == 300
    ids = bpe.encode(words[5])
    assert len(ids) < 0.7 * len(words[5].encode())
    assert [i.tolist() for i in bpe.encode_many(words[:3])] == [bpe.encode(w).tolist() for w in words[:3]]


def test_bpe_is_trained_once_and_the_same_every_time(bpe, corpus, tmp_path, monkeypatch):
    again = build(corpus, tmp_path / "elsewhere", kind="bpe", vocab_size=300)
    assert again.fingerprint == bpe.fingerprint
    monkeypatch.setattr("depthkit.data.tokenizers.bpe._train", None)  # training again would fail
    assert build(corpus, tmp_path, kind="bpe", vocab_size=300).fingerprint == bpe.fingerprint


def test_bpe_reads_no_more_text_than_it_may(corpus, tmp_path, monkeypatch):
    served = []
    texts = corpus.texts
    monkeypatch.setattr(corpus, "texts", lambda split: (served.append(t) or t for t in texts(split)))
    build(corpus, tmp_path, kind="bpe", vocab_size=260, train_bytes=200)
    assert sum(len(t.encode()) for t in served[:-1]) < 200 <= sum(len(t.encode()) for t in served)


def test_a_full_disk_leaves_no_half_tokenizer(corpus, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        build(corpus, tmp_path, kind="bpe", vocab_size=300)
    assert [path.suffix for path in (tmp_path / "bpe").iterdir()] in ([], [".lock"])


def test_bpe_on_too_little_text_warns(corpus, tmp_path):
    with pytest.warns(UserWarning, match="vocab_size: 5000 asked for, but the text has only"):
        build(corpus, tmp_path, kind="bpe", vocab_size=5000)


@pytest.fixture
def saved(bpe, tmp_path):
    folder = tmp_path / "saved"
    folder.mkdir()
    bpe._tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_a_file_or_its_folder(bpe, saved):
    for path in (saved, saved / "tokenizer.json"):
        tokenizer = build(kind="file", path=str(path), bos="<bos>")
        assert tokenizer.encode("plain words").tolist() == bpe.encode("plain words").tolist()
        assert (tokenizer.fingerprint, tokenizer.bos) == (bpe.fingerprint, bpe.bos)


@pytest.mark.parametrize("mark", ["<bos>", {"content": "<bos>", "lstrip": False}])
def test_bos_is_what_the_neighbouring_file_says(saved, mark):
    assert build(kind="file", path=str(saved)).bos is None
    (saved / "tokenizer_config.json").write_text(json.dumps({"bos_token": mark}))
    assert build(kind="file", path=str(saved)).bos == 0


def test_truncation_padding_and_templates_are_switched_off(bpe, saved):
    library = Tokenizer.from_file(str(saved / "tokenizer.json"))
    library.enable_truncation(2)
    library.enable_padding(length=50)
    library.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    library.save(str(saved / "tokenizer.json"))
    tokenizer = build(kind="file", path=str(saved))
    assert tokenizer.encode("plain words end.").tolist() == bpe.encode("plain words end.").tolist()


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("tokeniser.json", None, "no file .*tokeniser.json; did you mean 'tokenizer.json'"),
        ("other.json", "{}", "other.json is not a tokenizer of the tokenizers library"),
        ("other.json", "not json", "other.json is not a tokenizer"),
    ],
)
def test_bad_files_are_named(saved, name, content, match):
    if content is not None:
        (saved / name).write_text(content)
    with pytest.raises(ValueError, match=match):
        build(kind="file", path=str(saved / name))


def test_an_unknown_bos_is_refused(saved):
    with pytest.raises(ValueError, match=r"data.tokenizer.bos: unknown mark '<bso>'; did you mean '<bos>'"):
        build(kind="file", path=str(saved), bos="<bso>")


def test_a_broken_neighbour_is_named(saved):
    (saved / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config.json is not JSON"):
        build(kind="file", path=str(saved))


def word_piece():
    vocab = {token: i for i, token in enumerate(["[UNK]", "hello", "wor", "##ld", "##s", "naïve"])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def sentence_piece():
    pieces = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "h", "i", "▁h", "▁hi", "ï"]
    tokenizer = Tokenizer(
        models.BPE(
            {p: i for i, p in enumerate(pieces)}, [("▁", "h"), ("▁h", "i")], byte_fallback=True, fuse_unk=True
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


@pytest.mark.parametrize(
    ("make", "text"), [(word_piece, " hello worlds naïve"), (sentence_piece, " hi hi🙂 ï i")]
)
def test_other_vocabularies_count_bytes_too(make, text, tmp_path):
    make().save(str(tmp_path / "tokenizer.json"))
    tokenizer = build(kind="file", path=str(tmp_path))
    assert tokenizer.byte_lengths[tokenizer.encode(text)].sum() == len(text.encode())


def test_gaps_in_a_vocabulary_count_as_ids(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 9}, unk_token="a"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert build(kind="file", path=str(tmp_path)).vocab_size == 10


def test_a_hub_name_is_found_in_the_local_cache(bpe, saved, tmp_path, monkeypatch):
    commit = hashlib.sha1(b"").hexdigest()
    repo = tmp_path / "hf" / "models--some--name"
    snapshot = repo / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    (snapshot / "tokenizer.json").write_text((saved / "tokenizer.json").read_text())
    (snapshot / "tokenizer_config.json").write_text('{"bos_token": "<bos>"}')
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert build(kind="hub", name="some/name").fingerprint == bpe.fingerprint
    with pytest.raises(ValueError, match=r"data.tokenizer.name: no tokenizer.json of 'other/name'"):
        build(kind="hub", name="other/name")


def test_ids_know_their_number_and_nothing_else():
    tokenizer = build(kind="ids", vocab_size=12)
    assert (tokenizer.vocab_size, tokenizer.bos, tokenizer.byte_lengths.tolist()) == (12, None, [0] * 12)
    assert build(kind="ids", vocab_size=13).fingerprint != tokenizer.fingerprint
    for use in (
        lambda: tokenizer.encode("a"),
        lambda: tokenizer.encode_many(["a"]),
        lambda: tokenizer.decode([1]),
    ):
        with pytest.raises(ValueError, match="cannot read or write text"):
            use()


def test_fingerprints_differ(bpe, saved):
    marked = build(kind="file", path=str(saved), bos="<bos>")
    unmarked = build(kind="file", path=str(saved))
    prints = [t.fingerprint for t in (build(kind="bytes"), marked, unmarked)]
    assert len(set(prints)) == 3
    assert all(len(p) == 64 for p in prints)
    assert isinstance(bpe.byte_lengths, np.ndarray)


def test_ids_at_the_end_can_be_left_out_and_text_that_needs_one_is_refused(bpe, tmp_path):
    path = tmp_path / "tokenizer.json"
    bpe._tokenizer.save(str(path))
    whole = build(kind="file", path=str(path))
    cut = build(kind="file", path=str(path), vocab_size=270)
    kept = next(text for text in "abcdefgh" if whole.encode(text).max() < 270)
    lost = whole.decode([whole.vocab_size - 1])
    assert cut.vocab_size == len(cut.byte_lengths) == 270
    assert cut.fingerprint != whole.fingerprint
    assert (cut.encode(kept) == whole.encode(kept)).all()
    with pytest.raises(
        ValueError, match=r"data\.tokenizer\.vocab_size: 270 leaves out .* which the text holds"
    ):
        cut.encode(lost)
    with pytest.raises(ValueError, match=f"at most the tokenizer's {whole.vocab_size} ids.*got 9999"):
        build(kind="file", path=str(path), vocab_size=9999)
