import pytest
import torch

from depthkit.training.optim import parameter_groups
from tests.model.streams.written import assert_equal_with_gradients, branches, double_model, parameters
from tests.models import make_ids, make_model


def written(normalise):
    def forward(model, ids):
        p = parameters(model)
        x = x0 = p["embed.weight"][ids]
        if normalise:
            x0 = x0 / (x0.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        for visit, site, branch in branches(model, ids):
            if site == 0:
                x = p["carry"][visit] * x + p["inject"][visit] * x0
            x = x + branch(x)
        return x

    return forward


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("loops", [1, 2])
def test_forward_and_gradients_equal_the_written_out_loop(normalise, loops):
    model = double_model({"kind": "embedding_skip", "normalise": normalise}, loops=loops)
    assert_equal_with_gradients(model, written(normalise))


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "huginn"])
def test_at_the_start_it_equals_a_single_stream_bitwise(placement):
    ids, model = make_ids(), {"depth": 3, "loops": 2, "placement": placement}
    single, skip = make_model(**model), make_model(stream="embedding_skip", **model)
    assert torch.equal(single(ids).hidden, skip(ids).hidden)
    assert torch.equal(single(ids, ids).loss, skip(ids, ids).loss)


def test_lambda_learns_a_hundred_times_slower_than_mu():
    model = make_model(stream={"kind": "embedding_skip"})
    lr = {id(p): g["lr_multiplier"] for g in parameter_groups(model) for p in g["params"]}
    bank = model.schedules.stream_bank
    assert lr[id(bank.carry)] == pytest.approx(0.01)
    assert lr[id(bank.inject)] == 1.0


def test_the_norm_after_the_add_leaves_the_embedding_alone():
    model = make_model(stream="embedding_skip")
    state = model.stream.open(torch.randn(2, 3, 16))
    after = model.stream.map(state, lambda x: 2 * x)
    assert torch.equal(after.x, 2 * state.x)
    assert after.x0 is state.x0
