"""`python -m depthkit doctor`: what is active here and why the rest is not."""

import runpy
import sys

import pytest
import torch

from depthkit.kernels import doctor
from depthkit.kernels.attention import ATTENTION, flash_library

CPU = torch.device("cpu")


def test_every_backend_has_a_row_and_exactly_one_is_active():
    rows = doctor.attention_rows(CPU)
    assert sorted(row.name for row in rows) == ATTENTION.names()
    assert [row.name for row in rows if row.state == "active"] == ["sdpa"]
    assert all(row.detail for row in rows)
    assert {row.name: row.state for row in rows}["flex"] == "forward only"
    assert {row.name: row.state for row in rows}["eager"] == "available"


def test_auto_is_asked_about_training_packing_and_decoding():
    assert doctor.picks(CPU) == dict.fromkeys(
        ["training", "training on packed documents", "decoding"], "sdpa"
    )


def test_a_flash_attn_that_imports_shows_its_version(tmp_path, monkeypatch):
    (tmp_path / "flash_attn_interface.py").write_text(
        "__version__ = '3.1'\ndef flash_attn_varlen_func(): ..."
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flash_attn_interface", raising=False)
    flash_library.load.cache_clear()
    try:
        row = next(row for row in doctor.library_rows() if row.name == "flash-attn 3")
        assert row == ("flash-attn 3", "found", "3.1")
    finally:
        flash_library.load.cache_clear()
        sys.modules.pop("flash_attn_interface", None)


def test_the_command_prints_torch_devices_attention_and_experts(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["depthkit", "doctor"])
    monkeypatch.delitem(sys.modules, "depthkit.__main__", raising=False)
    with pytest.raises(SystemExit) as done:
        runpy.run_module("depthkit", run_name="__main__")
    assert not done.value.code
    shown = capsys.readouterr().out
    for expected in (torch.__version__, "cpu", "sdpa", "flash-attn 2", "grouped", "megablocks", "auto is"):
        assert expected in shown
