"""What the routers of a step did: load, entropy, overlap between loops; rows and curves."""

import math

import pytest
import torch

from depthkit.training import metrics
from depthkit.training.expert_telemetry import ExpertTelemetry, selection_overlap
from depthkit.training.run import train
from depthkit.training.telemetry import DepthTelemetry
from tests.models import make_ids, make_model, redraw
from tests.training.test_step import batch
from tests.training.test_tensorboard import events

MIXER = {"kind": "gqa", "num_heads": 2, "num_kv_heads": 1}


def moe(loops=3, **ffn):
    blocks = {"dense": {"mixer": MIXER, "ffn": {"kind": "moe", "num_experts": 4, "hidden_dim": 8, **ffn}}}
    return {"blocks": blocks, "segments": [{"name": "core", "pattern": ["dense"], "loops": loops}]}


def test_overlap_of_two_selections():
    a = torch.tensor([[0, 1], [2, 3], [1, 3]])
    b = torch.tensor([[1, 0], [0, 1], [3, 0]])
    assert selection_overlap(a, b).tolist() == [1.0, 0.0, 0.5]


@pytest.mark.parametrize(("experts", "k"), [(16, 1), (16, 4), (8, 6)])
def test_independent_selections_overlap_by_chance(experts, k):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(20_000, experts, generator=generator).topk(k).indices for _ in range(2))
    assert selection_overlap(a, b).mean().item() == pytest.approx(k / experts, abs=0.01)
    assert (selection_overlap(a, a) == 1).all()


def measured(model, targets=None):
    ids = make_ids(4, 12)
    targets = ids if targets is None else targets
    return ExpertTelemetry.of(model(ids, targets), targets != -100)


def silent(model):
    """The same stream at every loop: branches write nothing."""
    with torch.no_grad():
        for layer in model.layers:
            layer.mixer.branch.o.weight.zero_()
            layer.ffn.branch.down.zero_()
    return model


def test_a_shared_router_that_reads_the_same_chooses_the_same():
    model = silent(redraw(make_model(**moe())))
    found = measured(model)
    assert [str(key) for key in found.overlap] == ["core.1.0", "core.2.0"]
    assert set(found.overlap.values()) == {1.0}
    assert set(found.chance.values()) == {0.5}
    own = measured(silent(redraw(make_model(**moe(router="per_loop", num_experts=16, loops=12)))))
    average = sum(own.overlap.values()) / len(own.overlap)
    assert average == pytest.approx(2 / 16, abs=0.1)


def test_load_and_entropy_are_those_of_the_counted_tokens():
    model, targets = redraw(make_model(**moe())), make_ids(4, 12)
    targets[:2] = -100
    found, ids = measured(model, targets), make_ids(4, 12)
    output = model(ids, targets)
    for key, aux in zip((v.key for v in output.visits), output.aux, strict=True):
        share = torch.bincount(aux["experts"][2:].flatten(), minlength=4) / (2 * 12 * 2)
        assert found.load[key] == pytest.approx(share.tolist())
        assert 0 < found.entropy[key] <= math.log(4)
    both = output.aux[0]["experts"][2:], output.aux[1]["experts"][2:]
    overlaps = [
        len({*a.tolist()} & {*b.tolist()}) / 2 for a, b in zip(*(x.flatten(0, 1) for x in both), strict=True)
    ]
    assert found.overlap[output.visits[1].key] == pytest.approx(sum(overlaps) / len(overlaps))


def test_an_undecided_router_has_the_entropy_of_its_experts():
    model = redraw(make_model(**moe()))
    with torch.no_grad():
        model.layers[0].ffn.branch.router.weight.zero_()
    assert list(measured(model).entropy.values()) == pytest.approx([math.log(4)] * 3)


def test_a_dense_model_has_none(make_trainer):
    assert measured(make_model()) is None
    telemetry = DepthTelemetry()
    make_trainer().stepper.take([batch(2)], 1, telemetry)
    assert telemetry.experts is None


def test_a_run_writes_rows_curves_and_a_picture(run, tmp_path):
    config = run(model=moe({"kind": "uniform", "max": 4}), steps=3, telemetry_every=1)
    train(config, tmp_path / "run", quiet=True)
    rows = metrics.read(tmp_path / "run" / "metrics.jsonl", "experts")
    assert [row["step"] for row in rows] == [1, 2, 3]
    depths = metrics.read(tmp_path / "run" / "metrics.jsonl", "telemetry")
    for row, depth in zip(rows, depths, strict=True):
        loops = len(depth["variance"])
        assert list(row["load"]) == list(row["entropy"]) == [f"core.{loop}.0" for loop in range(loops)]
        assert list(row["overlap"]) == list(row["chance"]) == [f"core.{loop}.0" for loop in range(1, loops)]
        assert all(sum(load) == pytest.approx(1) and len(load) == 4 for load in row["load"].values())
    assert len({len(row["load"]) for row in rows}) > 1
    tags = {v.tag for e in events(tmp_path / "run" / "tb") for v in e.summary.value}
    assert {
        "experts/max load x E/core.0.0",
        "experts/entropy/core.0.0",
        "experts/overlap/core.1.0",
        "experts/overlap/chance 0.5",
        "experts/load, visit (up) x expert",
        "depth x step/variance",
    } <= tags


def test_measuring_leaves_the_step_as_it_is(make_trainer):
    plain, observed = (make_trainer(model=moe(bias_rate=0.1, router="per_loop")) for _ in range(2))
    for step in (1, 2):
        data = [batch(3, seed=step), batch(2, seed=9)]
        assert plain.stepper.take(data, step) == observed.stepper.take(data, step, DepthTelemetry())
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, observed.model.state_dict()[name]), name
