import os

import pytest

from depthkit import files


def test_replacing_keeps_the_old_content_on_an_error(tmp_path):
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    with pytest.raises(OSError, match="full"), files.replacing(path) as temporary:
        temporary.write_text("half")
        raise OSError("full")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_replacing_folder_swaps_whole_folders(tmp_path):
    path = tmp_path / "f"
    with files.replacing_folder(path) as temporary:
        (temporary / "x").write_text("1")
    with files.replacing_folder(path) as temporary:
        (temporary / "y").write_text("2")
    assert os.listdir(path) == ["y"]
    with pytest.raises(OSError, match="full"), files.replacing_folder(path) as temporary:
        (temporary / "z").write_text("3")
        raise OSError("full")
    assert os.listdir(path) == ["y"]
    assert os.listdir(tmp_path) == ["f"]


def test_a_failed_swap_puts_the_old_folder_back(tmp_path, monkeypatch):
    path = tmp_path / "f"
    with files.replacing_folder(path) as temporary:
        (temporary / "x").write_text("1")
    real, calls = os.replace, []

    def second_fails(source, target):
        calls.append(source)
        if len(calls) == 2:
            raise OSError("no")
        real(source, target)

    monkeypatch.setattr(files.os, "replace", second_fails)
    with pytest.raises(OSError, match="no"), files.replacing_folder(path) as temporary:
        (temporary / "y").write_text("2")
    assert os.listdir(path) == ["x"]


def test_json_refuses_nan(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(tmp_path / "a.json", {"x": float("nan")})
    assert os.listdir(tmp_path) == []
