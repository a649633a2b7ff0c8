import errno
import hashlib
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from depthkit.data import store

DOCUMENTS = [np.array([3, 1, 4]), np.array([1]), np.array([5, 9])]


def write(folder: Path, vocab_size: int = 10, documents=DOCUMENTS) -> store.TokenStore:
    store.write(folder, {"train": iter(documents)}, vocab_size)
    return store.read(folder)["train"]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(10, "<u2"), (65536, "<u2"), (65537, "<u4")])
def test_what_is_written_is_read(tmp_path, vocab_size, dtype):
    split = write(tmp_path / "store", vocab_size)
    assert split.tokens.tolist() == [3, 1, 4, 1, 5, 9]
    assert split.starts.tolist() == [0, 3, 4]
    assert split.dtype == dtype
    assert split.sha256 == hashlib.sha256(np.array([3, 1, 4, 1, 5, 9], "<u4").tobytes()).hexdigest()


def test_ids_at_the_end_of_their_type(tmp_path):
    assert write(tmp_path / "small", 2**16, [np.array([2**16 - 1])]).tokens.tolist() == [2**16 - 1]
    assert write(tmp_path / "large", 2**17, [np.array([2**17 - 1])]).tokens.tolist() == [2**17 - 1]


def test_a_split_without_documents(tmp_path):
    split = write(tmp_path / "store", documents=[])
    assert (split.count, len(split.tokens), len(split.starts)) == (0, 0, 0)


def test_a_pickled_store_carries_no_tokens(tmp_path):
    split = write(tmp_path / "store", documents=[np.zeros(100_000, np.int64)])
    assert len(split.tokens) == 100_000
    pickled = pickle.dumps(split)
    assert len(pickled) < 2000
    assert pickle.loads(pickled).tokens.tolist() == split.tokens.tolist()


@pytest.mark.parametrize("name", ["train.ids", "train.starts", "meta.json"])
def test_a_truncated_file_is_named_a_damaged_cache(tmp_path, name):
    write(tmp_path / "store")
    path = tmp_path / "store" / name
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match=f"{tmp_path}/store: damaged token cache"):
        store.read(tmp_path / "store")


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_the_default_folder_follows_xdg(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert store.default_folder() == Path("/somewhere/depthkit")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert store.default_folder() == Path("/home/someone/.cache/depthkit")
