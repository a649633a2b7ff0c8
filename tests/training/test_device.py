import signal

import pytest
import torch

from depthkit.training import device
from depthkit.training.progress import describe
from depthkit.training.stopping import StopRequest


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40", None),
        ("Some GPU", None),
    ],
)
def test_the_peak_is_known_or_said_to_be_unknown(monkeypatch, name, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert device.peak_flops(torch.device("cuda"), bf16=True) == peak


def test_there_is_no_peak_for_a_cpu_or_for_fp32(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    assert device.peak_flops(torch.device("cpu"), bf16=True) is None
    assert device.peak_flops(torch.device("cuda"), bf16=False) is None


def test_precision_auto_follows_the_device():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert [device.runs_bf16("auto", d) for d in (cpu, cuda)] == [False, True]
    assert [device.runs_bf16("bf16", d) for d in (cpu, cuda)] == [True, True]
    assert [device.runs_bf16("fp32", d) for d in (cpu, cuda)] == [False, False]


def test_threads_are_put_back():
    before = torch.get_num_threads()
    with pytest.raises(KeyError), device.threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise KeyError
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_request_and_the_second_acts(number):
    received = []
    before = signal.signal(number, lambda *_: received.append(1))
    try:
        with StopRequest() as stop:
            signal.raise_signal(number)
            assert (stop.signal, received) == (number, [])
            signal.raise_signal(number)
        assert received == [1]
        signal.raise_signal(number)
        assert received == [1, 1]
    finally:
        signal.signal(number, before)


def test_the_progress_line_says_what_is_unknown():
    row = {"loss": 2.5, "grad_norm": None, "lr": 1e-3, "tok_s": 12345.6, "mfu": None, "memory_mb": 500.0}
    assert describe(row) == "loss 2.5000 grad n/a lr 1.00e-03 12,346 tok/s mfu n/a mem 500 MB"
    assert "mfu 41.2%" in describe({**row, "mfu": 0.412})
