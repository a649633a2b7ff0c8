"""Balance loss, z-loss, load and entropy against plain-Python statements; what they are taken over."""

import math

import pytest
import torch

from depthkit.model.ffns.balance import auxiliary, count_tokens
from depthkit.model.ffns.router import Routed, Visiting
from depthkit.model.transformer import auxiliary_loss
from tests.model.ffns.written import choose, ids, inputs, make, scores
from tests.models import make_ids, make_model, redraw

MIXER = {"kind": "gqa", "num_heads": 2, "num_kv_heads": 1}
MASK = torch.tensor([[True] * 7, [True] * 3 + [False] * 4, [False] * 7])


def moe_model(loops=1, depth=2, **settings):
    ffn = {"kind": "moe", "num_experts": 4, "hidden_dim": 8, **settings}
    return make_model(loops=loops, depth=depth, blocks={"dense": {"mixer": MIXER, "ffn": ffn}})


def by_hand(branch, h, mask, scope):
    """Balance, z and entropy, token by token; a group is a sequence, or everything."""
    config, weight = branch.config, branch.router.weight
    experts = range(config.num_experts)
    groups: dict[int, list] = {}
    for b in range(len(h)):
        for t in range(h.shape[1]):
            if mask[b, t]:
                groups.setdefault(b if scope == "sequence" else 0, []).append(h[b, t])
    total = sum(len(tokens) for tokens in groups.values())
    balance, z, entropy, load = 0, 0, 0, [0] * config.num_experts
    for tokens in groups.values():
        got = [0] * config.num_experts
        share = [0] * config.num_experts
        for x in tokens:
            s = scores(x, weight, config)
            p = s / s.sum()
            for e in choose(s, config):
                got[e] += 1
                load[e] += 1
            share = [share[e] + p[e] / len(tokens) for e in experts]
            z = z + (weight @ x).exp().sum().log() ** 2 / total
            entropy = entropy - sum(q * math.log(q) for q in p.tolist()) / total
        f = [count / (len(tokens) * config.top_k) for count in got]
        balance = balance + sum(config.num_experts * f[e] * share[e] for e in experts) * len(tokens) / total
    return balance, z, entropy, load


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "padded"])
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("scope", ["sequence", "batch"])
def test_losses_are_as_written_out(scope, score, mask):
    branch, h = make(score=score, scope=scope, balance=0.3, z_loss=0.7), inputs(3)
    aux = branch(h, branch.prepare(ids(h), mask))[1]
    balance, z, entropy, load = by_hand(branch, h, torch.ones(3, 7) if mask is None else mask, scope)
    torch.testing.assert_close(aux["loss/balance"], 0.3 * balance, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(aux["balance"], balance, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(aux["loss/router_z"], 0.7 * z, rtol=1e-6, atol=1e-9)
    assert aux["entropy"].item() == pytest.approx(entropy, rel=1e-6)
    assert aux["load"].tolist() == load
    assert aux["experts"].shape == (3, 7, 2)
    variables = [h, branch.router.weight]
    for name, stated in (("loss/balance", 0.3 * balance), ("loss/router_z", 0.7 * z)):
        pairs = (torch.autograd.grad(v, variables, retain_graph=True) for v in (aux[name], stated))
        for a, b in zip(*pairs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-8)
    assert not aux["balance"].requires_grad
    assert not aux["entropy"].requires_grad


def routed(shares, experts):
    shares = torch.tensor(shares, dtype=torch.float64)
    return Routed(shares.log(), shares, torch.tensor(experts), torch.ones(*shares.shape[:2], 1))


def config_of(**settings):
    return make(num_experts=4, **settings).config


def test_balance_is_one_when_uniform_and_e_over_k_when_collapsed():
    even = routed([[[0.25] * 4] * 2] * 3, [[[0, 1], [2, 3]]] * 3)
    counted = count_tokens(torch.zeros(3, 2), None)
    for scope in ("sequence", "batch"):
        assert auxiliary(even, counted, config_of(scope=scope))["balance"].item() == pytest.approx(1)
        assert auxiliary(even, counted, config_of(scope=scope))["entropy"].item() == pytest.approx(
            math.log(4)
        )
    lost = routed([[[0.5, 0.5, 1e-30, 1e-30]] * 2] * 3, [[[0, 1], [0, 1]]] * 3)
    assert auxiliary(lost, counted, config_of())["balance"].item() == pytest.approx(4 / 2)
    alone = routed([[[1 - 3e-30, 1e-30, 1e-30, 1e-30]] * 2] * 3, [[[0], [0]]] * 3)
    assert auxiliary(alone, counted, config_of(top_k=1))["balance"].item() == pytest.approx(4)


def test_sequences_with_opposite_imbalance_cancel_in_a_batch_and_not_by_sequence():
    left, right = [0.97, 0.01, 0.01, 0.01], [0.01, 0.01, 0.01, 0.97]
    opposite = routed([[left] * 2, [right] * 2], [[[0], [0]], [[3], [3]]])
    counted = count_tokens(torch.zeros(2, 2), None)
    by = {
        s: auxiliary(opposite, counted, config_of(scope=s, top_k=1))["balance"].item()
        for s in ("sequence", "batch")
    }
    assert by["sequence"] == pytest.approx(4 * 0.97)
    assert by["batch"] == pytest.approx(4 * 0.5 * (0.49 * 2))


def test_visits_with_opposite_imbalance_do_not_cancel():
    """Two routers, one sending all to expert 0 and one all to expert 3: the loss is that of each, not of the sum."""
    model = redraw(
        moe_model(loops=2, depth=1, router="per_loop", top_k=1, balance=1.0, z_loss=0, num_experts=2)
    )
    bank = model.schedules.branch_banks["dense/ffn"]
    ids_, before = make_ids(3, 12), model.layers[0].ffn.before
    with torch.no_grad():
        before.weight.fill_(1)
        bank.weight.zero_()
        model.embed.weight[:, 0] = 40  # a feature that is the same everywhere, on which routers can decide
        bank.weight[0, 0, 0] = bank.weight[1, 1, 0] = 30
    output = model(ids_, ids_)
    loads = [aux["load"].tolist() for aux in output.aux]
    assert loads == [[36, 0], [0, 36]]
    assert (output.loss - output.cross_entropy).item() == pytest.approx(2, rel=1e-3)


def test_the_objective_is_the_mean_over_visits_of_every_loss():
    model = redraw(moe_model(loops=3, balance=0.2, z_loss=0.1))
    ids_ = make_ids(3, 12)
    output = model(ids_, ids_)
    assert len(output.aux) == len(output.visits) == 6
    extra = sum(sum(aux[f"loss/{name}"].item() for aux in output.aux) / 6 for name in ("balance", "router_z"))
    assert (output.loss - output.cross_entropy).item() == pytest.approx(extra, rel=1e-4)
    assert auxiliary_loss([{}, {}], [True, True]) == 0.0


def test_dense_visits_have_no_part_in_the_mean():
    ffn = {"kind": "moe", "num_experts": 4, "balance": 0.5, "z_loss": 0}
    blocks = {"dense": {"mixer": MIXER, "ffn": "swiglu"}, "moe": {"mixer": MIXER, "ffn": ffn}}
    segments = [{"name": "core", "pattern": ["dense", "moe", "dense"], "loops": 2}]
    model = redraw(make_model(blocks=blocks, segments=segments))
    output = model(make_ids(), make_ids())
    values = [aux["loss/balance"].item() for aux in output.aux if aux]
    assert [bool(aux) for aux in output.aux] == [False, True, False] * 2
    assert (output.loss - output.cross_entropy).item() == pytest.approx(sum(values) / 2, rel=1e-4)


def test_unscored_tokens_count_neither_for_loss_nor_load():
    model = redraw(moe_model(balance=0.5))
    ids_, targets = make_ids(2, 9), make_ids(2, 9, seed=1)
    targets[0, 5:] = -100
    output = model(ids_, targets)
    assert all(aux["load"].sum() == 2 * (9 + 5) for aux in output.aux)
    moved = ids_.clone()
    moved[0, 5:] = (moved[0, 5:] + 7) % 31
    other = model(moved, targets)
    for a, b in zip(output.aux, other.aux, strict=True):
        torch.testing.assert_close(a["loss/balance"], b["loss/balance"])
        assert torch.equal(a["load"], b["load"])
    torch.testing.assert_close(output.loss, other.loss)
    assert (model(ids_, torch.full_like(ids_, -100)).loss == 0).all()


def bank_of(model):
    return model.schedules.branch_banks["dense/ffn"]


def test_the_balancing_bias_moves_by_the_sign_of_what_is_missing():
    model = moe_model(loops=2, depth=1, bias_rate=0.1)
    bank, keys = bank_of(model), [v.key for v in model.plan.visits]
    assert (bank.choice_bias == 0).all()
    assert "schedules.branch_banks.dense/ffn.choice_bias" in model.state_dict()
    model.after_step({keys[0]: torch.tensor([8.0, 2.0, 5.0, 5.0]), keys[1]: torch.tensor([5.0, 5, 5, 5])})
    expected = torch.tensor([[-0.1, 0.1, 0, 0], [0, 0, 0, 0]])
    torch.testing.assert_close(bank.choice_bias, expected)
    model.after_step({keys[1]: torch.tensor([0.0, 3, 0, 1])})
    torch.testing.assert_close(
        bank.choice_bias, torch.stack([expected[0], torch.tensor([0.1, -0.1, 0.1, 0])])
    )
    model.after_step({keys[0]._replace(loop=9): torch.tensor([9.0, 0, 0, 0])})
    torch.testing.assert_close(bank.choice_bias[0], expected[0])


def test_the_balancing_bias_has_no_gradient_and_a_forward_does_not_move_it():
    model, ids_ = redraw(moe_model(bias_rate=0.1)), make_ids()
    with torch.no_grad():
        bank_of(model).choice_bias.copy_(torch.tensor([0.3, 0, -0.3, 0]).expand(2, 4))
    before = bank_of(model).choice_bias.clone()
    for mode in (True, False):
        model.train(mode)(ids_, ids_).loss.backward()
    assert torch.equal(bank_of(model).choice_bias, before)
    assert not bank_of(model).choice_bias.requires_grad
    assert bank_of(model).choice_bias.dtype == torch.float32
    biased = model(ids_).hidden
    bank_of(model).choice_bias.zero_()
    assert not torch.equal(model(ids_).hidden, biased)


def test_the_balancing_bias_balances():
    """A router that would choose expert 0 almost always is brought close to even, without any gradient."""
    branch, h = make(top_k=1, num_experts=4), inputs(8, 32)
    with torch.no_grad():
        branch.router.weight.mul_(0.2)
        h[..., 0], branch.router.weight[0, 0] = 1, 1.0
    bias = torch.zeros(4).double()
    ctx, worst = branch.prepare(ids(h), None), []
    for _ in range(250):
        load = branch(h, ctx, Visiting(choice_bias=bias))[1]["load"]
        worst.append((load.max() / load.mean()).item())
        bias = bias + 0.003 * (load.mean() - load).sign()
    assert worst[0] > 3
    assert max(worst[-20:]) < 1.4
