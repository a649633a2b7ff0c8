"""A disk that fills up at any write: one message, exit code 2, nothing lost, nothing half-written."""

import builtins
import errno
import io
import os

import pytest
import torch
import yaml

import train as script
from depthkit.training import checkpoint, metrics, tensors
from tests.training.helpers import digests, losses

WRITES = 43
"""Writes of the run below; a test holds this number, so every one of them is tried."""


class Disk:
    """Fails write number `full` under `root`, after half of its data; counts all writes."""

    def __init__(self, root, monkeypatch):
        self.root, self.full, self.count = str(root), None, 0
        self.open, self.save_file = io.open, tensors.save_file
        for module in (builtins, io):
            monkeypatch.setattr(module, "open", self.opened)
        monkeypatch.setattr(tensors, "save_file", self.saved)

    def opened(self, file, mode="r", *args, **kwargs):
        held = self.open(file, mode, *args, **kwargs)
        under = not isinstance(file, int) and os.fspath(file).startswith(self.root)
        return Writer(held, self) if under and set(mode) & set("wax+") else held

    def fails(self):
        self.count += 1
        return self.count == self.full

    def saved(self, values, path):
        self.save_file(values, path)
        if self.fails():
            os.truncate(path, 10)
            raise tensors.SafetensorError("I/O error: No space left on device (os error 28)")


class Writer:
    """A file whose write may fail."""

    def __init__(self, file, disk):
        self.file, self.disk = file, disk

    def write(self, data):
        if self.disk.fails():
            self.file.write(data[: len(data) // 2])
            self.file.flush()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.file.name)
        return self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()


@pytest.fixture
def start(mapping, tmp_path):
    """Run train.py on a config of 4 steps with two checkpoints; the exit code."""
    raw = mapping(steps=4, checkpoint_every=2, telemetry_every=2, eval_every=2)
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(raw))
    return lambda name, *more: script.main([str(path), "--run-dir", str(tmp_path / "runs" / name), *more])


@pytest.fixture(scope="module")
def kept():
    """What `whole` found, for all tests."""
    return []


@pytest.fixture
def whole(kept, start, tmp_path):
    """Losses and digests of the run on a disk that never fills up."""
    if not kept:
        assert start("whole") == 0
        kept.append(found(tmp_path / "runs" / "whole"))
    return kept[0]


def found(folder):
    return losses(folder), digests(folder, 4)


@pytest.fixture
def disk(tmp_path, monkeypatch):
    return Disk(tmp_path / "runs", monkeypatch)


def test_the_writes_are_counted(start, disk):
    assert start("whole") == 0
    assert disk.count == WRITES


@pytest.mark.parametrize("number", range(1, WRITES + 1))
def test_a_full_disk_is_reported_once_and_loses_nothing(start, whole, disk, tmp_path, capsys, number):
    folder = tmp_path / "runs" / "run"
    disk.full = number
    assert start("run") == 2
    error = capsys.readouterr().err
    assert error.count("error:") == error.count("\n") == 1
    assert "No space left on device" in error
    assert "continue with --resume" in error
    assert not [path for path in folder.rglob(".*") if path.exists()]
    rows = folder / "metrics.jsonl"
    assert not rows.exists() or rows.read_text()[-2:] in ("", "}\n")
    held = checkpoint.steps(folder / "checkpoints")
    for step in held:
        checkpoint.read_state(checkpoint.find(folder, step))
    latest = checkpoint.latest(folder / "checkpoints")
    assert (f"step {latest} is intact" if held else "no checkpoint was written yet") in error
    assert start("run", "--resume") == 0
    assert found(folder) == whole
    assert [row["step"] for row in metrics.read(folder / "metrics.jsonl", "train")] == [1, 2, 3, 4]


def test_other_errors_of_the_tensor_library_are_os_errors_too(tmp_path):
    with pytest.raises(OSError, match=r"Input/output") as caught:
        tensors.save(tmp_path, {"w": torch.zeros(3)})  # a folder is in the way
    assert caught.value.filename == str(tmp_path)
