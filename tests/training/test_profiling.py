"""Profiles: every event's time goes to one place, the places are the plan's, and nothing stays behind."""

import gzip
import json
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

from depthkit.model.walk import Walk
from depthkit.training.profile_labels import Labels, Place, place_of
from depthkit.training.profile_table import BACKWARD, added_up, by_place, text
from depthkit.training.run import train
from tests.models import make_ids, make_model
from tests.training.helpers import losses


def event(name, start, own, parent=None, sequence=-1, length=1000, device=DeviceType.CPU):
    return SimpleNamespace(
        name=name,
        time_range=SimpleNamespace(start=start, end=start + length),
        cpu_parent=parent,
        sequence_nr=sequence,
        self_cpu_time_total=own,
        self_device_time_total=0.0,
        device_type=device,
    )


def numbers(rows):
    return {(r["site"], r["branch"]): (r["forward"], r["backward"], r["recomputed"]) for r in rows}


def test_events_go_to_the_site_they_work_for():
    visit = event(Place("core.0.1", "stream").label, 10, 1e3)
    mixer = event(Place("core.0.1", "mixer").label, 11, 2e3, visit)
    product = event("aten::mm", 12, 4e3, mixer, sequence=7)
    add = event("aten::add", 13, 8e3, visit, sequence=8)
    plus = event(f"{BACKWARD}AddBackward0", 100, 16e3, sequence=8)
    back = event(f"{BACKWARD}MmBackward0", 110, 32e3, sequence=7)
    inside = event("aten::mm", 111, 64e3, back)
    again = event(Place("core.0.0", "ffn").label, 112, 128e3, back)
    deep = event("aten::silu", 113, 256e3, again, sequence=9)
    gather = event(f"{BACKWARD}torch::autograd::AccumulateGrad", 120, 512e3)
    stray = event("aten::norm", 130, 1024e3)
    kernel = event("kernel", 14, 1e9, device=DeviceType.CUDA)
    events = [stray, gather, deep, again, inside, back, plus, add, product, mixer, visit, kernel]
    assert numbers(by_place(events, steps=2)) == {
        ("core.0.1", "stream"): (4.5, 8.0, 0.0),
        ("core.0.1", "mixer"): (3.0, 48.0, 0.0),
        ("core.0.0", "ffn"): (0.0, 0.0, 192.0),
        ("gradients", ""): (0.0, 256.0, 0.0),
        ("step", ""): (512.0, 0.0, 0.0),
    }


def test_of_operators_with_one_number_the_last_made_the_backward_function():
    first = event(Place("a.0.0", "norm").label, 0, 0.0)
    second = event(Place("a.0.0", "mixer").label, 10, 0.0)
    events = [
        first,
        second,
        event("aten::detach", 1, 0.0, first, sequence=3),
        event("aten::mm", 11, 0.0, second, sequence=3),
        event(f"{BACKWARD}MmBackward0", 20, 1e3, sequence=3),
    ]
    assert numbers(by_place(events, 1))[("a.0.0", "mixer")] == (0.0, 1.0, 0.0)


def test_branches_are_added_up_over_visits_and_the_text_has_both_tables():
    rows = by_place(
        [event(Place(f"a.0.{slot}", "ffn").label, slot, 1e3 * (slot + 1)) for slot in range(3)], 1
    )
    (together,) = added_up(rows)
    assert (together["site"], together["forward"]) == ("ffn", 6.0)
    shown = text(rows, 1)
    assert "6.0 ms a step" in shown
    assert "a.0.2" in shown
    assert "50.0%" in shown
    assert place_of("aten::mm") is None


@pytest.mark.parametrize("checkpointing", ["none", "every_k"])
def test_a_run_leaves_a_profile_of_every_visit_and_is_otherwise_the_same(run, tmp_path, checkpointing):
    model = {"depth": 2, "loops": 2}
    settings = {"steps": 7, "activation_checkpointing": checkpointing}
    train(run(model=model, profile=True, **settings), tmp_path / "profiled", quiet=True)
    train(run(model=model, **settings), tmp_path / "plain", quiet=True)
    assert losses(tmp_path / "profiled") == losses(tmp_path / "plain")
    assert not (tmp_path / "plain" / "profile.json").exists()
    found = json.loads((tmp_path / "profiled" / "profile.json").read_text())
    assert found["steps"] == [4, 6]
    rows = {(row["site"], row["branch"]): row for row in found["by_site"]}
    visits = {site for site, branch in rows if branch}
    assert visits == {f"trunk.{loop}.{slot}" for loop in (0, 1) for slot in (0, 1)}
    for visit in visits:
        for branch in ("mixer", "ffn", "norm"):
            assert rows[visit, branch]["forward"] > 0
            assert rows[visit, branch]["backward"] > 0
            assert (rows[visit, branch]["recomputed"] > 0) == (checkpointing != "none")
    assert {"embed", "head", "optimizer", "final_norm", "step"} <= {
        site for site, branch in rows if not branch
    }
    assert "trunk.1.1" in (tmp_path / "profiled" / "profile.txt").read_text()
    with gzip.open(tmp_path / "profiled" / "trace.json.gz") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert {"depthkit: trunk.0.1 mixer", "depthkit: head"} <= names


def test_a_run_that_is_too_short_says_so(run, tmp_path, capsys):
    train(run(steps=4, profile=True), tmp_path / "run")
    assert "no profile: it takes 6 steps, and this run took 4" in " ".join(capsys.readouterr().out.split())
    assert not (tmp_path / "run" / "profile.json").exists()


def test_labels_come_down_again_after_an_error_too():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters())
    visit, step = Walk.visit, optimizer.step
    with pytest.raises(RuntimeError, match="in between"), Labels(model, optimizer).up():
        assert Walk.visit is not visit
        assert any(module._forward_hooks for module in model.modules())
        raise RuntimeError("in between")
    assert Walk.visit is visit
    assert "loss" not in vars(model.head)
    assert optimizer.step == step
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo's own
def test_a_compiled_block_is_one_place():
    model = make_model()
    model.compile_blocks(backend="eager")
    ids = make_ids()
    model(ids, ids).loss.backward()
    optimizer = torch.optim.SGD(model.parameters())
    with Labels(model, optimizer).up(), torch.profiler.profile() as profile:
        model(ids, ids).loss.backward()
    found = numbers(by_place(profile.events(), 1))
    assert {site for site, branch in found if branch} == {"trunk.0.0", "trunk.0.1"}
    for place, times in found.items():
        if place[1]:
            assert place[1] == "block"
            assert min(times[:2]) > 0
