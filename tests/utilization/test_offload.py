"""States beyond a budget: the same values from elsewhere, and nothing left behind."""

import gc
import os
import tempfile
from pathlib import Path

import psutil
import pytest
import torch

from depthkit.utilization import Sequences, Subject, evaluate
from depthkit.utilization import offload as offloading
from depthkit.utilization.edits import skip
from depthkit.utilization.offload import Fetched, Offload, on_disk
from depthkit.utilization.options import ReplayOptions
from depthkit.utilization.record import record
from depthkit.utilization.replay import Engine
from tests.models import make_ids
from tests.utilization import models
from tests.utilization.test_planned import MODELS, build

AWAY = ReplayOptions(offload_bytes=0)


def run(model, options, windows, batch_tokens=16):
    engine = Engine(Subject(model), Sequences.of(windows), batch_tokens, options=options)
    with engine.subject.frozen():
        traces = engine.record()
        edits = [skip(visit) for visit in range(traces[0].depth)]
        return engine, traces, [step.after for step in engine.sweep(traces, edits)]


@pytest.mark.parametrize("name", ["recorded", *MODELS])
def test_states_from_a_file_are_the_states(name):
    model, vocab = (models.mixing(3), 13) if name == "recorded" else (build(name), 11)
    windows = make_ids(3, 7, vocab)
    _, here, one = run(model, ReplayOptions(), windows)
    engine, away, other = run(model, AWAY, windows)
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))
    for a, b in zip(here, away, strict=True):
        for name in ("before", "after"):
            for x, y in zip(getattr(a, name), getattr(b, name), strict=True):
                assert torch.equal(x, y)
                assert x.stride() == y.stride()
                assert y.data_ptr() % 64 == 0
        assert torch.equal(a.final, b.final)
        assert (a.final is a.states[-1]) == (b.final is b.states[-1])
    kept = {id(t): t.nbytes for trace in here for t in trace.states}
    assert engine.cost()["offloaded_bytes"] >= sum(kept.values())


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads Linux's list of mapped files")
def test_the_file_has_no_name_and_goes_with_its_tensors(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    engine, traces, steps = run(models.mixing(3), AWAY, models.tokens(4))
    assert sum(str(tmp_path) in line for line in Path("/proc/self/maps").read_text().splitlines()) == 4
    assert list(tmp_path.iterdir()) == []
    del engine, traces, steps
    gc.collect()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_what_is_written_leaves_the_process():
    states = [torch.ones(2**20) for _ in range(16)]  # 64 MB
    copies = on_disk(states)
    del states
    before = psutil.Process().memory_info().rss
    assert float(sum(float(copy.sum()) for copy in copies)) == 16 * 2**20
    # Only reading has brought the pages back.
    assert psutil.Process().memory_info().rss - before > 48 * 2**20


def test_a_report_is_the_same_and_says_it():
    model, windows = models.mixing(4), models.tokens()
    here, away = evaluate(model, windows), evaluate(model, windows, replay=AWAY)
    assert here.content["per_visit"] == away.content["per_visit"]
    assert here.content["scalars"] == away.content["scalars"]
    assert away.content["timing"]["offloaded_bytes"] == 5 * 6 * 12 * models.DIM * 4  # L + 1 states
    assert "offloaded_bytes" not in here.content["timing"]


def test_a_budget_holds_the_first_micro_batches():
    state = 12 * models.DIM * 4
    budget = ReplayOptions(offload_bytes=2 * 4 * state)
    engine, _, _ = run(models.mixing(3), budget, models.tokens(5))
    assert engine.cost()["offloaded_bytes"] == 3 * 4 * state


def test_strides_types_and_shared_tensors_survive(monkeypatch):
    base = torch.arange(24.0).view(2, 3, 4)
    values = [base.transpose(1, 2), base.half()[:, ::2], torch.zeros(0), torch.ones(3, dtype=torch.bool)]
    for value, copy in zip(values, on_disk(values), strict=True):
        assert torch.equal(value, copy)
        assert value.clone().stride() == copy.stride()
        assert value.dtype == copy.dtype


def test_a_disk_without_room_is_named(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(offloading.os, "posix_fallocate", full, raising=False)
    with pytest.raises(ValueError, match=r"replay\.offload_bytes: 64 bytes .* \(No space left on device\)"):
        on_disk([torch.zeros(3)])


def test_a_gpus_states_are_fetched_from_the_host(monkeypatch):
    """Not run on a GPU here: a device that is not the CPU stands in, to which copies are watched."""
    subject = Subject(models.mixing(3))
    with subject.frozen():
        seen = record(subject, Sequences.of(models.tokens(2)))
    copied = []
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device: copied.append(device) or tensor.clone())
    device = torch.device("cuda", 0)
    kept = Offload(0, device).keep(seen)
    assert isinstance(kept.after, Fetched)
    assert [torch.equal(a, b) for a, b in zip(kept.after, seen.after, strict=True)] == [True] * 3
    assert torch.equal(kept.before[1:][0], seen.before[1])
    assert copied == [device] * 5
    assert kept.final is seen.final
