"""One step on two processes has the gradient of the global objective, however the scored tokens lie."""

import pytest
import torch

from depthkit.data import Batch
from depthkit.training.parallel.base import one_process
from depthkit.training.parallel.layout import DATA_PARALLEL, Layout
from depthkit.training.parallel.norms import whole
from depthkit.training.parallel.ranks import Group
from depthkit.training.step import Stepper
from tests.models import make_model, redraw
from tests.training.parallel.cases import experts
from tests.training.parallel.processes import spread

KINDS = {"ddp": Layout("ddp", 2, 2, 1), "fsdp": Layout("fsdp", 2, 1, 2)}
SCOPES = ("sequence", "batch")


def micro_batches():
    """Three: uneven; scored on the first rank alone; scored nowhere."""
    generator = torch.Generator().manual_seed(0)
    ids, targets = (torch.randint(0, 31, (3, 4, 9), generator=generator) for _ in range(2))
    targets[0, :, 5:] = -100
    targets[0, 3, 1:] = -100
    targets[1, 2:] = -100
    targets[2] = -100
    return [Batch(i, t, None, 0) for i, t in zip(ids, targets, strict=True)]


def step(parallel, scope):
    model = redraw(make_model(blocks=experts(scope=scope, balance=0.5, z_loss=0.1), depth=2), 0.3)
    parallel.shard(model)
    stepper = Stepper(model, torch.optim.SGD(model.parameters(), 1e-3), 0.5, False, parallel=parallel)
    loads = []
    original = model.after_step
    model.after_step = lambda found: (loads.extend(found.values()), original(found))
    result = stepper.take(micro_batches(), 1)
    bias = model.schedules.branch_banks["dense/ffn"].choice_bias
    gradients = {name: whole(p.grad) for name, p in model.named_parameters()}
    return result, gradients, torch.stack(loads), bias


def on_ranks():
    found = {}
    for kind, layout in KINDS.items():
        for scope in SCOPES:
            found[kind, scope] = step(DATA_PARALLEL.get(kind)(layout, Group()), scope)
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return spread(on_ranks, folder=tmp_path_factory.mktemp("steps"))


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_loads_and_biases_are_those_of_one_process(ranks, kind, scope):
    result, gradients, loads, bias = step(one_process(), scope)
    for rank in ranks:
        other, others, summed, moved = rank[kind, scope]
        assert other.scored == result.scored == 16 + 18
        assert other.grad_norm == pytest.approx(result.grad_norm, rel=1e-5)
        assert other.objective == pytest.approx(result.objective, rel=1e-6)
        assert other.loss == pytest.approx(result.loss, rel=1e-6)
        assert torch.equal(loads, summed)
        assert torch.equal(bias, moved)
        assert result.grad_norm > 0.5  # so that clipping is tested too
        for name, gradient in gradients.items():
            assert (others[name] - gradient).abs().max() < 1e-6 + 1e-5 * gradient.abs().max(), name
    assert result.objective > result.loss + 0.1
    assert (bias != 0).any()
