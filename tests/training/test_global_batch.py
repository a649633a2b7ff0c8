"""Gradients, expert loads and the balancing bias do not depend on how a step is split into micro-batches."""

import pytest
import torch

from depthkit.data import Batch
from depthkit.training.step import Stepper
from tests.model.loops.written import segments
from tests.models import make_model, redraw

MIXER = {"kind": "gqa", "num_heads": 2, "num_kv_heads": 1}


def ragged(rows=8, time=9, vocab=31):
    """A batch in which every sequence has other positions without a target, one has a single target."""
    generator = torch.Generator().manual_seed(0)
    ids, targets = (torch.randint(0, vocab, (rows, time), generator=generator) for _ in range(2))
    for row in range(rows):
        targets[row, torch.randperm(time, generator=generator)[: (row * 3) % time]] = -100
    targets[5, :-1] = -100
    return ids, targets


def split(ids, targets, sizes):
    parts = zip(ids.split(sizes), targets.split(sizes), strict=True)
    return [Batch(one, other, None, 0) for one, other in parts]


def step(sizes, **ffn):
    """Gradients, bias and result of one step in float64."""
    settings = {"kind": "moe", "num_experts": 4, "hidden_dim": 8, "bias_rate": 0.1, "backend": "loop", **ffn}
    model = make_model(
        segments=segments({"inject": "convex", "carry": "mean", "readout": "weighted"}),
        blocks={"dense": {"mixer": MIXER, "ffn": settings}},
        norm="none",
        final_norm=False,
    )
    redraw(model, std=0.15).double()
    loads, original = {}, model.after_step
    model.after_step = lambda found: (loads.update(found), original(found))
    stepper = Stepper(model, torch.optim.SGD(model.parameters(), 1.0), clip=None, autocast=False)
    result = stepper.take(split(*ragged(), sizes), 1)
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return result, gradients, loads, model.schedules.branch_banks["dense/ffn"].choice_bias


def differing(a, b):
    """Parameters whose gradients differ by more than 1e-6 of the largest entry (logits are fp32)."""
    return [name for name in a if (a[name] - b[name]).abs().max() > 1e-6 * a[name].abs().max()]


@pytest.mark.parametrize("sizes", [[1] * 8, [3, 5], [2, 1, 5]], ids=str)
@pytest.mark.parametrize("router", ["shared", "per_loop"])
def test_any_split_is_the_same_step(sizes, router):
    (one, expected, loads, bias), (parts, gradients, summed, moved) = (
        step(s, router=router, balance=0.5, z_loss=0.1) for s in ([8], sizes)
    )
    assert parts.objective == pytest.approx(one.objective, rel=1e-7)
    assert parts.loss == pytest.approx(one.loss, rel=1e-7)
    assert one.objective > one.loss + 0.1
    assert loads.keys() == summed.keys()
    assert all(torch.equal(loads[key], summed[key]) for key in loads)
    assert all(load.sum() == 2 * one.scored for load in loads.values())
    assert torch.equal(moved, bias)
    assert (bias != 0).any()
    assert all((gradient != 0).any() for gradient in expected.values())
    assert differing(expected, gradients) == []


def test_balance_over_a_micro_batch_depends_on_the_split_as_documented():
    from depthkit.model.registries import FFNS

    (_, whole, _, _), (_, parts, _, _) = (step(sizes, scope="batch", balance=0.5) for sizes in ([8], [1] * 8))
    assert len(differing(whole, parts)) > 10
    field = FFNS.get("moe").Config.model_fields["scope"]
    assert "does not depend on how a batch is split" in field.description.replace("\n", " ")
    (_, whole, _, _), (_, parts, _, _) = (step(sizes, scope="batch", balance=0) for sizes in ([8], [1] * 8))
    assert differing(whole, parts) == []
