import math

import numpy as np
import pytest
import torch

from depthkit.training.step import forward
from depthkit.training.telemetry import PER_LAYER, PER_VISIT, DepthTelemetry, angle
from tests.models import redraw
from tests.training.test_step import batch


def measure(trainer, batches, sample=10_000):
    telemetry = DepthTelemetry(sample)
    trainer.stepper.take(batches, 1, telemetry)
    return telemetry.row()


def by_hand(trainer, data):
    """The same quantities from float64 states and torch.autograd.grad."""
    states, afters = [], []

    def observe(visit, before, after):
        states.append((before.detach().double().numpy(), after.detach().double().numpy()))
        afters.append(after)

    trainer.model.train()
    loss = forward(trainer.model, data, 1, False, observe).loss
    grads = torch.autograd.grad(loss, afters)
    row = {name: [] for name in PER_VISIT}
    for (before, after), gradient in zip(states, grads, strict=True):
        size = np.linalg.norm(before, axis=-1)
        cosine = (before * after).sum(-1) / size / np.linalg.norm(after, axis=-1)
        row["variance"].append(after.var(-1).mean())
        row["write_ratio"].append((np.linalg.norm(after - before, axis=-1) / size).mean())
        row["angle"].append(np.arccos(cosine).mean())
        row["stream_grad_norm"].append(gradient.double().norm().item())
    return row


@pytest.mark.parametrize("model", [{"depth": 3}, {"depth": 2, "loops": 2}, {"placement": "post"}])
def test_measurements_equal_an_independent_computation(make_trainer, model):
    trainer = make_trainer(model=model, clip=None)
    redraw(trainer.model)
    data = batch(3)
    expected = by_hand(trainer, data)
    row = measure(trainer, [data])
    for name in PER_VISIT:
        assert row[name] == pytest.approx(expected[name], rel=1e-4), name
    layers = [
        torch.cat([p.grad.flatten() for p in layer.parameters()]).norm().item()
        for layer in trainer.model.layers
    ]
    assert row["layer_grad_norm"] == pytest.approx(layers, rel=1e-4)
    assert set(row) == {*PER_VISIT, *PER_LAYER}


def test_the_stream_of_one_micro_batch_is_measured_whatever_its_weight(make_trainer):
    alone, among = make_trainer(), make_trainer()
    first, second = batch(2, seed=1), batch(4, seed=2)
    rows = measure(alone, [first]), measure(among, [first, second])
    for name in PER_VISIT:
        assert rows[0][name] == pytest.approx(rows[1][name], rel=1e-4), name


def test_sampled_tokens_are_spread_over_the_batch(make_trainer):
    trainer = make_trainer()
    redraw(trainer.model)
    data = batch(8)
    row, full = measure(trainer, [data], sample=64), measure(make_trainer_like(trainer), [data])
    assert row["variance"] == pytest.approx(full["variance"], rel=0.3)
    assert row["variance"] != full["variance"]
    assert row["stream_grad_norm"] == full["stream_grad_norm"]


def make_trainer_like(trainer):
    redraw(trainer.model)  # the step has moved the weights
    return trainer


@pytest.mark.parametrize("size", [1e-6, 0.5, math.pi / 2, math.pi - 1e-6])
def test_angles_are_exact_where_the_arc_cosine_is_not(size):
    a = torch.tensor([3.0, 0.0], dtype=torch.float64)
    b = torch.tensor([math.cos(size), math.sin(size)], dtype=torch.float64) * 0.2
    assert angle(a, b).item() == pytest.approx(size, rel=1e-6)


def test_undefined_values_are_null(make_trainer):
    trainer = make_trainer()
    trainer.model.layers[1].mixer.branch.o.weight.data.fill_(float("nan"))
    row = measure(trainer, [batch(2)])
    assert row["variance"][0] is not None
    assert row["variance"][1] is None


def test_observing_does_not_change_the_step(make_trainer):
    plain, observed = make_trainer(), make_trainer()
    for step in range(1, 4):
        data = batch(4, seed=step)
        assert plain.stepper.take([data], step) == observed.stepper.take([data], step, DepthTelemetry())
    for one, other in zip(plain.model.parameters(), observed.model.parameters(), strict=True):
        assert torch.equal(one, other)
