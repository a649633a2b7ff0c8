import numpy as np
import pytest

IDS = np.random.default_rng(0).integers(1, 500, 2000)
IDS[::50] = 0
KINDS = {"kind": "ids", "vocab_size": 500}


@pytest.fixture
def written(tmp_path):
    """Write ids as .npy (any type) or .bin (uint16 unless told) and return the path."""

    def write(name="ids.npy", ids=IDS, dtype="uint16"):
        path = tmp_path / name
        np.save(path, ids.astype(dtype)) if path.suffix == ".npy" else ids.astype(dtype).tofile(path)
        return str(path)

    return write


def rows(data):
    splits = data._splits
    return splits.train.store, splits.validation.store


@pytest.mark.parametrize(
    ("name", "dtype", "fields"),
    [
        ("ids.npy", "uint16", {}),
        ("ids.npy", "int64", {}),
        ("ids.npy", ">i4", {}),
        ("ids.bin", "uint16", {}),
        ("ids.bin", "uint32", {"dtype": "uint32"}),
        ("ids.bin", "int32", {"dtype": "int32"}),
    ],
)
def test_every_storage_reads_alike(opened, written, name, dtype, fields):
    data = opened({"kind": "tokens", "path": written(name, dtype=dtype), **fields}, KINDS)
    train, validation = rows(data)
    assert np.concatenate([train.tokens, validation.tokens]).tolist() == IDS.tolist()
    assert validation.count == 100
    assert data.summary()["train_sha256"] == opened_sha(opened, written)
    batch = next(data.train(2))
    assert batch.num_bytes == 0
    assert sum(b.num_scored for b in data.validation(3)) == 99


def opened_sha(opened, written):
    return opened({"kind": "tokens", "path": written("plain.npy")}, KINDS).summary()["train_sha256"]


def test_separators_open_documents(opened, written):
    data = opened({"kind": "tokens", "path": written(), "separator": 0, "validation_fraction": 0.03}, KINDS)
    train, validation = rows(data)
    assert train.starts.tolist() == list(range(0, 1950, 50))
    assert (train.count, validation.count) == (1950, 50)  # the cut moved on to the next document
    assert validation.tokens[0] == 0
    assert validation.starts.tolist() == [0]


def test_separators_close_documents(opened, written):
    corpus = {"kind": "tokens", "path": written(), "separator": 0, "separator_at": "end"}
    train, validation = rows(opened(corpus, KINDS))
    assert train.starts.tolist() == [0, *range(1, 1901, 50)]
    assert train.tokens[-1] == 0
    assert validation.starts.tolist() == [0, 50]


def test_a_validation_file(opened, written):
    other = written("other.bin", IDS[:30])
    train, validation = rows(opened({"kind": "tokens", "path": written(), "validation": other}, KINDS))
    assert (train.count, validation.tokens.tolist()) == (2000, IDS[:30].tolist())


def test_the_scan_does_not_depend_on_the_chunk(opened, written, monkeypatch):
    corpus = {"kind": "tokens", "path": written(), "separator": 0}
    whole = opened(corpus, KINDS)
    monkeypatch.setattr("depthkit.data.corpora.tokens.CHUNK", 7)
    assert opened(corpus, KINDS).summary() == whole.summary()
    assert rows(opened(corpus, KINDS))[0].starts.tolist() == rows(whole)[0].starts.tolist()


def test_workers_read_the_file_themselves(opened, written):
    corpus = {"kind": "tokens", "path": written(), "separator": 0}
    one, other = (next(opened(corpus, KINDS, num_workers=n).train(4)) for n in (0, 1))
    assert one.ids.tolist() == other.ids.tolist()


def test_a_tokenizer_of_the_ids_counts_their_bytes(opened, written):
    text = b"In the beginning God created the heaven and the earth. " * 10
    ids = np.frombuffer(text, np.uint8)
    data = opened({"kind": "tokens", "path": written("text.bin", ids)})
    assert sum(b.num_bytes for b in data.validation(2)) == len(text) - len(text) * 95 // 100 - 1


@pytest.mark.parametrize(
    ("name", "ids", "dtype", "match"),
    [
        ("x.npy", IDS, "uint16", "x.npy: id .* at position .* outside the tokenizer's vocabulary of 257"),
        ("x.npy", -IDS, "int64", "x.npy: id -.* at position 1 is outside"),
        ("x.npy", IDS, "float32", "x.npy: must hold one row of integers .*float32"),
        ("x.npy", IDS.reshape(2, -1), "uint16", r"one row of integers .*\(2, 1000\)"),
        ("x.npy", IDS[:0], "uint16", "one row of integers"),
        ("x.bin", IDS[:0], "uint16", "x.bin is empty"),
        ("x.bin", IDS[:3], "uint8", "not a multiple of the 2 bytes of dtype uint16"),
        ("x.bin", IDS[:9] % 200, "uint16", "8 training tokens are fewer than one window"),
        ("x.pt", IDS, "uint16", "unknown format '.pt'.* Allowed: .bin, .npy"),
    ],
)
def test_bad_ids_are_refused(opened, written, name, ids, dtype, match):
    with pytest.raises(ValueError, match=match):
        opened({"kind": "tokens", "path": written(name, ids, dtype)})


def test_missing_and_broken_files_are_named(opened, tmp_path):
    with pytest.raises(ValueError, match=r"data.corpus.path: .*none.npy is missing"):
        opened({"kind": "tokens", "path": str(tmp_path / "none.npy")})
    (tmp_path / "x.npy").write_bytes(b"not an array")
    with pytest.raises(ValueError, match=r"data.corpus.path: .*x.npy"):
        opened({"kind": "tokens", "path": str(tmp_path / "x.npy")})


def test_a_truncated_array_is_named(opened, written, tmp_path):
    path = tmp_path / "ids.npy"
    written()
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"data.corpus.path: .*ids.npy"):
        opened({"kind": "tokens", "path": str(path)}, KINDS)


def test_training_a_tokenizer_on_ids_is_refused(opened, written):
    with pytest.raises(ValueError, match="no tokenizer can be trained"):
        opened({"kind": "tokens", "path": written()}, {"kind": "bpe"})


def test_ids_cannot_read_text(opened):
    with pytest.raises(ValueError, match=r"data.tokenizer ids: only counts ids"):
        opened("kjv", KINDS)
