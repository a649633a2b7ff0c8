import pytest
import torch

from tests.model.streams.written import assert_equal_with_gradients, branches, double_model, parameters
from tests.models import make_ids, make_model, redraw


def written(model, ids):
    """Equations of the paper, stream by stream."""
    p = parameters(model)
    x = p["embed.weight"][ids]
    n = p["read"].shape[-1]
    h = [x] * n
    for at in branches(model, ids):
        visit, site, branch = at
        a_m, a_r, b = p["read"][visit, site], p["carry"][visit, site], p["write"][visit, site]
        a_m, a_r, b = ([a_m[i] for i in range(n)], [[a_r[i, j] for j in range(n)] for i in range(n)], list(b))
        if "weight" in p:
            weight, (s_a, s_b) = p["weight"][visit, site], p["scale"][visit, site]
            for i in range(n):
                normed = h[i] / (h[i].square().mean(-1, keepdim=True) + 1e-6).sqrt()
                made = torch.tanh(normed @ weight)
                a_m[i] = a_m[i] + s_a * made[..., 0]
                a_r[i] = [a_r[i][j] + s_a * made[..., 1 + j] for j in range(n)]
                b[i] = b[i] + s_b * made[..., 1 + n]
        column = lambda w: w[..., None]  # noqa: E731
        y = branch(sum(column(a_m[i]) * h[i] for i in range(n)))
        h = [sum(column(a_r[j][i]) * h[j] for j in range(n)) + column(b[i]) * y for i in range(n)]
    return sum(h)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("streams", "loops"), [(1, 1), (3, 2)])
def test_forward_and_gradients_equal_the_written_out_loop(dynamic, streams, loops):
    stream = {"kind": "hyper", "dynamic": dynamic, "streams": streams}
    assert_equal_with_gradients(double_model(stream, depth=2, loops=loops), written)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
def test_at_the_start_it_equals_a_single_stream(dynamic, placement):
    ids, model = make_ids(), {"depth": 4, "loops": 2, "placement": placement, "embedding_std": 1.0}
    single = make_model(**model)
    hyper = make_model(stream={"kind": "hyper", "dynamic": dynamic}, **model)
    torch.testing.assert_close(hyper(ids).hidden, single(ids).hidden, rtol=0, atol=2e-6)
    torch.testing.assert_close(hyper(ids, ids).loss, single(ids, ids).loss, rtol=0, atol=1e-6)


def test_visit_v_reads_stream_v_mod_n_at_both_branches():
    bank = make_model(depth=2, loops=3, stream={"kind": "hyper", "streams": 4}).schedules.stream_bank
    assert bank.read.argmax(-1).tolist() == [[v % 4] * 2 for v in range(6)]
    assert torch.equal(bank.read.sum(-1), torch.ones(6, 2))


def test_without_dynamic_maps_there_are_no_parameters_for_them():
    model = make_model(depth=2, stream={"kind": "hyper", "streams": 3, "dynamic": False})
    names = [name for name, _ in model.schedules.stream_bank.named_parameters()]
    assert names == ["read", "carry", "write"]


def test_dynamic_maps_follow_the_token():
    model = redraw(make_model(stream={"kind": "hyper", "streams": 3}))
    state, maps = torch.randn(2, 4, 3, 16), model.schedules.banks(model.plan)[0].stream[0]
    mixing = model.stream.mixing(state, maps)
    alone = model.stream.mixing(state[:1, 2:3], maps)
    assert mixing.carry.shape == (2, 4, 3, 3)
    torch.testing.assert_close(mixing.carry[:1, 2:3], alone.carry)
    assert not torch.allclose(mixing.carry[0, 0], mixing.carry[0, 1])
