import pytest
import torch

from depthkit.model.streams.mhc import sinkhorn, sinkhorn_deepseek_v4
from tests.model.streams.written import assert_equal_with_gradients, branches, double_model, parameters
from tests.models import make_config, make_ids, make_model

FORMS = ["paper", "deepseek_v4"]


def doubly_stochastic(logits, form, eps=1e-6):
    """H_res of one [n, n] matrix of logits, step by step, as a nested list of sums would have it."""
    rows = lambda m: m / (m.sum(1, keepdim=True) + guard)  # noqa: E731
    columns = lambda m: m / (m.sum(0, keepdim=True) + guard)  # noqa: E731
    guard = 0.0 if form == "paper" else eps
    if form == "paper":
        m = logits.exp()
        for _ in range(20):
            m = rows(columns(m))
        return m
    m = logits.exp() / logits.exp().sum(1, keepdim=True) + eps
    m = columns(m)
    for _ in range(19):
        m = columns(rows(m))
    return m


def one_token(h, p, visit, site, form):
    """H_pre, H_post and the carried streams of one token's [n, D]."""
    n = len(h)
    flat = h.flatten()
    made = p["weight"][visit, site] @ (flat / (flat.square().mean() + 1e-6).sqrt())
    bias, (s_pre, s_post, s_res) = p["bias"][visit, site], p["scale"][visit, site]
    pre = torch.sigmoid(s_pre * made[:n] + bias[:n]) + (1e-6 if form == "deepseek_v4" else 0.0)
    post = 2 * torch.sigmoid(s_post * made[n : 2 * n] + bias[n : 2 * n])
    res = doubly_stochastic((s_res * made[2 * n :] + bias[2 * n :]).reshape(n, n), form)
    carried = [sum((res[i, j] if form == "paper" else res[j, i]) * h[j] for j in range(n)) for i in range(n)]
    return pre, post, torch.stack(carried)


def written(form):
    def forward(model, ids):
        p = parameters(model)
        n, dim = model.config.stream.streams, model.config.dim
        h = p["embed.weight"][ids][..., None, :].expand(-1, -1, n, dim)
        for visit, site, branch in branches(model, ids):
            tokens = [one_token(t, p, visit, site, form) for t in h.reshape(-1, n, dim)]
            pre, post, carried = (
                torch.stack(part).unflatten(0, ids.shape) for part in zip(*tokens, strict=True)
            )
            y = branch(sum(pre[..., i, None] * h[..., i, :] for i in range(n)))
            h = carried + post[..., None] * y[..., None, :]
        return h.sum(-2)

    return forward


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("streams", "loops"), [(2, 1), (3, 2)])
def test_forward_and_gradients_equal_the_written_out_loop(form, streams, loops):
    stream = {"kind": "mhc", "form": form, "streams": streams}
    assert_equal_with_gradients(double_model(stream, depth=1, loops=loops), written(form))


@pytest.mark.parametrize("n", [2, 3, 5])
def test_sinkhorn_of_both_forms_is_doubly_stochastic_and_in_the_stated_order(n):
    logits = torch.randn(7, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    paper, v4 = sinkhorn(logits, 20, 1e-6), sinkhorn_deepseek_v4(logits, 20, 1e-6)
    for a, b, c in zip(logits, paper, v4, strict=True):
        torch.testing.assert_close(b, doubly_stochastic(a, "paper"), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(c, doubly_stochastic(a, "deepseek_v4").T, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(paper.sum(-1), torch.ones(7, n, dtype=torch.float64))  # rows were last
    torch.testing.assert_close(v4.sum(-1), torch.ones(7, n, dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(paper.sum(-2), torch.ones(7, n, dtype=torch.float64), atol=1e-2, rtol=0)
    if n > 2:  # a doubly stochastic 2 x 2 matrix is symmetric
        assert (paper - v4).abs().max() > 0.05


def test_one_step_is_not_yet_doubly_stochastic_and_columns_come_first():
    logits = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    columns = logits.exp() / logits.exp().sum(0, keepdim=True)
    torch.testing.assert_close(sinkhorn(logits, 1, 0.0), columns / columns.sum(1, keepdim=True))
    rows = logits.softmax(1) + 1e-3
    torch.testing.assert_close(
        sinkhorn_deepseek_v4(logits, 1, 1e-3), (rows / (rows.sum(0, keepdim=True) + 1e-3)).T
    )


@pytest.mark.parametrize("size", [1e2, 1e4])
def test_sinkhorn_of_extreme_logits_stays_finite(size):
    logits = (size * torch.randn(5, 4, 4, generator=torch.Generator().manual_seed(0))).requires_grad_()
    for project in (sinkhorn, sinkhorn_deepseek_v4):
        result = project(logits, 20, 1e-6)
        (gradient,) = torch.autograd.grad(result.square().sum(), logits)
        assert torch.isfinite(result).all()
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
def test_at_the_start_it_equals_a_single_stream(form, placement):
    ids, model = make_ids(), {"depth": 4, "loops": 2, "placement": placement, "embedding_std": 1.0}
    single, mhc = make_model(**model), make_model(stream={"kind": "mhc", "form": form}, **model)
    # The eps of deepseek_v4 stand in every row sum.
    tolerance = {"paper": 5e-6, "deepseek_v4": 5e-5}[form]
    torch.testing.assert_close(mhc(ids).hidden, single(ids).hidden, rtol=0, atol=tolerance)


def test_initial_maps_favour_one_stream_by_the_share_that_is_set():
    model = make_model(depth=2, loops=3, stream={"kind": "mhc", "streams": 4, "start": 0.7})
    state = model.stream.open(torch.randn(1, 2, 16))
    for visit, bank in enumerate(model.schedules.banks(model.plan)):
        for maps in bank.stream:
            mixing = model.stream.mixing(state, maps)
            read = torch.full((4,), 0.1).index_fill(0, torch.tensor(visit % 4), 0.7)
            torch.testing.assert_close(mixing.read[0, 0], read)
            torch.testing.assert_close(mixing.write[0, 0], torch.ones(4))
            torch.testing.assert_close(mixing.carry[0, 0], torch.full((4, 4), 0.1) + 0.6 * torch.eye(4))


def test_maps_that_would_keep_all_streams_alike_are_refused():
    with pytest.raises(ValueError, match="stay alike"):
        make_config(stream={"kind": "mhc", "streams": 4, "start": 0.25})
    with pytest.raises(ValueError, match="streams"):
        make_config(stream={"kind": "mhc", "streams": 1})


def test_streams_come_apart_in_training():
    model, ids = make_model(depth=2, stream={"kind": "mhc", "streams": 3}), make_ids()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(4):
        optimizer.zero_grad()
        model(ids, ids).loss.backward()
        optimizer.step()
    bank = model.schedules.stream_bank
    write = bank.bias[..., 3:6].flatten(0, 1)
    apart = write.amax(-1) - write.amin(-1)
    assert (apart[:-1] > 1e-3).all()
    assert apart[-1] < 1e-6  # nothing but the sum of the streams reads what the last branch writes
    assert (bank.bias.grad[1, :, 6:].abs().amax(-1) > 0).all()
