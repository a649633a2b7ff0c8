"""The mixture of experts against one written out token by token, with all gradients."""

import pytest
import torch
from torch.nn import functional as F

from depthkit import config as configs
from depthkit.model import ModelConfig, Transformer
from depthkit.model.ffns.router import Visiting
from depthkit.model.registries import FFNS
from tests.model.ffns.written import DIM, ids, inputs, make, margin, reference
from tests.models import make_config, make_ids, make_model, model_dict, redraw

MIXER = {"kind": "gqa", "num_heads": 2, "num_kv_heads": 1}


def check(branch, visiting=None, more=()):
    h = inputs()
    assert margin(branch, h, visiting) > 1e-5
    actual = branch(h, branch.prepare(ids(h), None), visiting)[0]
    expected = reference(branch, h, visiting)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
    probe = torch.randn(h.shape, dtype=h.dtype, generator=torch.Generator().manual_seed(3))
    named = {"h": h, **dict(branch.named_parameters()), **dict(more)}
    found, stated = (torch.autograd.grad((y * probe).sum(), list(named.values())) for y in (actual, expected))
    for name, a, b in zip(named, found, stated, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10, msg=name)
        # a single weight that is made to be 1 depends on nothing, which is why null means no there
        silent = name == "router.weight" and branch.config.renormalise and branch.config.top_k == 1
        assert (a.abs().max() > 1e-9) != bool(silent), name


@pytest.mark.parametrize("expert", ["swiglu", "gelu"])
@pytest.mark.parametrize("top_k", [1, 2, 4])
@pytest.mark.parametrize("renormalise", [True, False, None])
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_it_is_its_equation(score, renormalise, top_k, expert):
    check(make(score=score, renormalise=renormalise, top_k=top_k, expert=expert))


@pytest.mark.parametrize("expert", ["swiglu", "gelu"])
def test_shared_experts_see_every_token(expert):
    branch = make(shared_experts=2, expert=expert, scale=2.5)
    assert branch.shared.up.weight.shape == (12, DIM)
    check(branch)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_what_a_visit_brings_along_acts(score):
    generator = torch.Generator().manual_seed(9)
    weight, bias, choice = (
        torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in ((5, DIM), (5,), (5,))
    )
    own = Visiting(weight=weight.requires_grad_())
    check(make(score=score, router="per_loop"), own, {"weight": weight})
    learned = Visiting(logit_bias=bias.requires_grad_(), choice_bias=choice)
    check(make(score=score, router="shared_bias"), learned, {"bias": bias})


def test_the_balancing_bias_changes_who_is_chosen_and_no_weight():
    branch, h = make(renormalise=False), inputs()
    ctx = branch.prepare(ids(h), None)
    far = torch.zeros(5).double()
    far[3] = 100
    aux = branch(h, ctx, Visiting(choice_bias=far))[1]
    assert (aux["experts"] == 3).any(-1).all()
    assert torch.equal(aux["entropy"], branch(h, ctx)[1]["entropy"])
    check(branch, Visiting(choice_bias=far))


@pytest.mark.parametrize("renormalise", [True, None])
@pytest.mark.parametrize("expert", ["swiglu", "gelu"])
def test_one_expert_for_all_is_the_dense_layer(expert, renormalise):
    branch, h = make(num_experts=1, top_k=1, expert=expert, renormalise=renormalise), inputs()
    config = FFNS.get(expert).Config(hidden_dim=6)
    dense = config.component(config, DIM).double()
    for name, parameter in dense.named_parameters():
        parameter.data.copy_(getattr(branch, name.removesuffix(".weight"))[0])
    y = branch(h, branch.prepare(ids(h), None))[0]
    torch.testing.assert_close(y, dense(h, None)[0], rtol=1e-12, atol=1e-14)
    probe = torch.randn_like(y)
    a, b = (torch.autograd.grad((out * probe).sum(), h)[0] for out in (y, dense(h, None)[0]))
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backend", ["loop", "grouped"])
def test_an_expert_that_gets_no_token_has_a_zero_gradient(backend):
    branch, h = make(top_k=1, backend=backend), inputs()
    branch, h = (branch.float(), h.detach().float()) if backend == "grouped" else (branch, h)
    never = torch.tensor([0.0, 0.0, -1e4, 0.0, 0.0])
    y, aux = branch(h, branch.prepare(ids(h), None), Visiting(choice_bias=never))
    assert aux["load"][2] == 0
    (y.square().sum() + aux["loss/balance"] + aux["loss/router_z"]).backward()
    for parameter in (branch.gate, branch.up, branch.down):
        assert (parameter.grad[2] == 0).all()
        assert torch.isfinite(parameter.grad).all()
        assert (parameter.grad[aux["load"].argmax()] != 0).any()


def test_backends_agree_in_a_model():
    ids_, outputs = make_ids(3, 11), []
    for backend in ("loop", "grouped"):
        ffn = {"kind": "moe", "num_experts": 4, "backend": backend, "shared_experts": 1}
        model = redraw(make_model(blocks={"dense": {"mixer": MIXER, "ffn": ffn}}))
        output = model(ids_, ids_)
        outputs.append((output, torch.autograd.grad(output.loss, list(model.parameters()))))
    (a, ga), (b, gb) = outputs
    torch.testing.assert_close(a.loss, b.loss)
    for x, y in zip(ga, gb, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6)


def test_tokens_do_not_see_each_other():
    """Dropless: a permutation of the tokens permutes the output, and one token alone gets the same."""
    branch, h = make(), inputs(1, 9)
    y = branch(h, branch.prepare(ids(h), None))[0]
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    moved = branch(h[:, order], branch.prepare(ids(h), None))[0]
    torch.testing.assert_close(moved, y[:, order], rtol=1e-12, atol=1e-14)
    alone = branch(h[:, 4:5], branch.prepare(ids(h[:, 4:5]), None))[0]
    torch.testing.assert_close(alone, y[:, 4:5], rtol=1e-12, atol=1e-14)


def test_routing_is_in_fp32_under_autocast():
    branch, h = make(backend="grouped").float(), inputs().detach().float()
    ctx = branch.prepare(ids(h), None)
    plain, aux = branch(h, ctx)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, again = branch(h, ctx)
    assert torch.equal(aux["experts"], again["experts"])
    for name in ("loss/balance", "loss/router_z", "entropy"):
        assert again[name].dtype == torch.float32
        assert torch.equal(aux[name], again[name])
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, plain, rtol=5e-2, atol=5e-2)
    assert not torch.equal(rounded, plain)


def test_the_bare_name_is_enough():
    config = make_config(blocks={"dense": {"mixer": MIXER, "ffn": "moe"}})
    ffn = config.blocks["dense"].ffn
    assert (ffn.num_experts, ffn.top_k, ffn.backend) == (8, 2, "grouped")
    model = Transformer(config)
    assert model.layers[0].ffn.branch.up.shape == (8, 24, 16)
    assert torch.isfinite(model(make_ids(), make_ids()).loss)


@pytest.mark.parametrize(
    ("expert", "top_k", "hidden"), [("swiglu", 1, 48), ("swiglu", 2, 24), ("gelu", 2, 32), ("gelu", 3, 24)]
)
def test_the_width_of_an_expert_is_a_dense_layers_shared_among_k(expert, top_k, hidden):
    config = FFNS.get("moe").Config(expert=expert, top_k=top_k)
    assert config.hidden(16) == hidden
    assert FFNS.get("moe").Config(hidden_dim=13).hidden(16) == 13


def test_every_matrix_starts_with_the_std_of_its_fan_in():
    wide = make_model(
        dim=64, depth=1, blocks={"dense": {"mixer": MIXER, "ffn": {"kind": "moe", "shared_experts": 1}}}
    )
    branch = wide.layers[0].ffn.branch
    for matrix in (branch.router.weight, branch.gate, branch.up, branch.down, branch.shared.down.weight):
        assert matrix.std().item() == pytest.approx(0.64 * matrix.shape[-1] ** -0.5, rel=0.1)
    flat = branch.up.flatten(1)
    assert torch.corrcoef(flat).fill_diagonal_(0).abs().max() < 0.1
    roles = {
        i.name.removeprefix("layers.0.ffn.branch."): i.role for i in wide.named_roles() if i.branch == "ffn"
    }
    assert roles | {"router.weight": "router", "up": "up", "shared.down.weight": "down"} == roles


REFUSED = {
    "more chosen than there are": (
        {"num_experts": 4, "top_k": 5},
        r"top_k \(5\) must not exceed num_experts \(4\)",
    ),
    "backend": ({"backend": "groupd"}, "unknown expert backend 'groupd'; did you mean 'grouped'"),
    "router": ({"router": "per_lop"}, "router"),
    "score": ({"score": "tanh"}, "score: .*'softmax' or 'sigmoid'"),
    "negative": ({"balance": -0.1}, "greater than or equal to 0"),
    "key": ({"num_expert": 4}, "unknown key 'num_expert'; did you mean 'num_experts'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_settings_are_refused(name):
    settings, message = REFUSED[name]
    raw = model_dict(blocks={"dense": {"mixer": MIXER, "ffn": {"kind": "moe", **settings}}})
    with pytest.raises(configs.ConfigError, match=message):
        configs.validate(ModelConfig, raw, "model")


def test_gradients_reach_every_router_of_every_visit():
    ffn = {"kind": "moe", "num_experts": 4, "router": "per_loop", "balance": 0, "z_loss": 0}
    model = redraw(make_model(loops=3, blocks={"dense": {"mixer": MIXER, "ffn": ffn}}))
    ids_ = make_ids(3, 12)
    output = model(ids_, ids_)
    assert not any(name.startswith("loss/") for aux in output.aux for name in aux)
    torch.testing.assert_close(output.loss, output.cross_entropy)
    output.loss.backward()
    weight = model.schedules.branch_banks["dense/ffn"].weight
    assert weight.shape == (6, 4, 16)
    assert (weight.grad.flatten(1).abs().amax(1) > 0).all()
    starts = make_model(loops=3, blocks={"dense": {"mixer": MIXER, "ffn": ffn}}).schedules.branch_banks[
        "dense/ffn"
    ]
    assert torch.corrcoef(starts.weight.flatten(1)).fill_diagonal_(0).abs().max() < 0.5
    assert F.cosine_similarity(starts.weight[0], starts.weight[2]).abs().max() < 0.8
