"""Bounded tanh: the norm, one visit written out, and the estimate c with its refreshing."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode

from depthkit.model import Transformer, account, unroll
from depthkit.model.gains import SiteGains
from depthkit.model.mixers.gqa import GroupedQueryAttention
from depthkit.model.registries import NORMS
from depthkit.model.walk import Inputs
from tests.models import make_config, make_ids, make_model, redraw

MODES = ("paper", "causal", "exact")
HEADS = {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2}


def bhyt(**settings):
    return {"kind": "bhyt", **settings}


def model_with(time=9, blocks=None, **settings):
    """A model whose c has been computed for windows of `time` tokens, without weights being near zero."""
    blocks = {"dense": {"mixer": blocks or HEADS, "ffn": "gelu"}}
    model = redraw(make_model(norm=bhyt(**settings), blocks=blocks))
    model(make_ids(time=time))
    return model


def product(mixer):
    """W_O W_V `[D, D]`, value heads repeated one by one."""
    c = mixer.config
    value = mixer.v.weight.view(c.kv_heads, -1, mixer.v.in_features)
    repeated = torch.cat([value[h * c.kv_heads // c.num_heads] for h in range(c.num_heads)])
    return mixer.o.weight @ repeated


def c_of(model, layer=0):
    return model.layers[layer].ffn.before.estimate.c.item()


def expected_c(model, time, layer=0):
    return (product(model.layers[layer].mixer.branch).square().sum() / (time * 16)).item()


@pytest.mark.parametrize("gain", [True, False])
def test_norm_alone_equals_its_formula_with_gradients(gain):
    cls = NORMS.get("bhyt")
    norm = cls(cls.Config(kappa=3.0, eps=0.1), 7, gain).double()
    norm.reset_parameters()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(torch.rand_like(parameter))
    x = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    z = norm.bound / 3 * x / ((x**2).sum(-1, keepdim=True) / 7 + 0.1) ** 0.5
    expected = (norm.weight if gain else 1) * (1 - 2 / ((2 * z).exp() + 1))
    got, _ = norm(x)
    torch.testing.assert_close(got, expected)
    inputs, direction = [x, *norm.parameters()], torch.randn(3, 5, 7)
    for a, b in zip(
        torch.autograd.grad((got * direction).sum(), inputs),
        torch.autograd.grad((expected * direction).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("slope", "rms", "derivative", "saturated"),
    [(0.2, 0.193, 0.963, 0.0), (0.3, 0.277, 0.923, 0.0), (0.5, 0.417, 0.827, 0.003)],
)
def test_values_on_a_gaussian_input(slope, rms, derivative, saturated):
    cls = NORMS.get("bhyt")
    norm = cls(cls.Config(kappa=10.0, lambda_other=10 * slope), 20001)
    norm.reset_parameters()
    x = torch.special.ndtri((torch.arange(20001.0) + 0.5) / 20001)
    y = norm(x)[0].detach()
    assert y.square().mean().sqrt().item() == pytest.approx(rms, abs=1e-3)
    assert (1 - y.square()).mean().item() == pytest.approx(derivative, abs=1e-3)
    assert (y.abs() > 0.9).float().mean().item() == pytest.approx(saturated, abs=1e-3)


def visit_by_hand(block, x, gains, ctx, mode):
    """One visit of a block from the formulas; also the two variances."""
    norm1, norm2, kappa = block.mixer.before, block.ffn.before, block.mixer.before.config.kappa
    time = x.shape[1]
    v1 = (x**2).mean(-1, keepdim=True)
    z1 = norm1.weight * torch.tanh(norm1.bound / kappa * x / (v1 + 1e-6).sqrt())
    y = block.mixer.branch(gains[0].read * z1, ctx[0])[0]
    carried = gains[0].skip * x + gains[0].write * y
    harmonic = sum(1 / t for t in range(1, time + 1)) if mode == "causal" else 1
    c = harmonic * product(block.mixer.branch).detach().square().sum() / (time * x.shape[-1])
    added = (
        (gains[0].write ** 2).mean() * (gains[0].read ** 2).mean() * c * norm1.bound.detach() ** 2 / kappa**2
    )
    exact = (carried**2).mean(-1, keepdim=True)
    v2 = exact if mode == "exact" else gains[0].skip ** 2 * v1 + added
    z2 = norm2.weight * torch.tanh(norm2.bound / kappa * carried / (v2 + 1e-6).sqrt())
    return gains[1].skip * carried + gains[1].write * block.ffn.branch(gains[1].read * z2, ctx[1])[0]


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_visit_with_gains_equals_the_formulas_with_gradients(mode, vector):
    model, ids = model_with(variance=mode, kappa=2.0).double(), make_ids()
    model(ids)
    block, ctx = model.layers[1], model.layers[1].prepare(Inputs(ids))
    shape = 16 if vector else 1
    gains = [SiteGains(*(torch.rand(n) + 0.5 for n in (shape, shape, 1))) for _ in range(2)]
    x = torch.randn(2, 9, 16, dtype=torch.float64, requires_grad=True)
    estimate = block.ffn.before.estimate
    if estimate is not None:
        estimate.forwards.zero_()
        estimate.reset_parameters()
        block.look(ids)  # in the precision of the written-out formula
    got, expected = block(x, gains, ctx)[0], visit_by_hand(block, x, gains, ctx, mode)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)
    inputs, direction = [x, *block.parameters()], torch.randn(2, 9, 16)
    for a, b in zip(
        torch.autograd.grad((got * direction).sum(), inputs),
        torch.autograd.grad((expected * direction).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_the_second_norm_measures_its_input_in_exact_mode_only(mode):
    """Far more in the input than the statistics say: an estimate does not see it."""
    block = model_with(variance=mode).layers[0]
    x = torch.randn(2, 9, 16)
    _, stats = block.mixer.before(x, None, "mixer", SiteGains())
    once, ten = (block.ffn.before(scale * x, stats, "ffn")[0] for scale in (1.0, 10.0))
    assert torch.allclose(once, ten, atol=1e-3) == (mode == "exact")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
def test_c_is_the_variance_that_even_attention_gives_white_input(heads, causal):
    """From the Jacobian of attention with equal scores; with a mask the mode is causal."""
    mixer = {"kind": "gqa", "num_heads": heads[0], "num_kv_heads": heads[1], "causal": causal}
    model = model_with(time=5, blocks=mixer, variance="causal" if causal else "paper")
    attention = model.layers[0].mixer.branch
    torch.nn.init.zeros_(attention.q.weight)
    ctx = attention.prepare(make_ids(1, 5), None)
    slope = torch.autograd.functional.jacobian(lambda h: attention(h, ctx)[0], torch.randn(1, 5, 16))
    assert c_of(model) == pytest.approx(slope.square().sum().item() / (5 * 16), rel=1e-5)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
def test_write_power_is_the_norm_of_the_product(heads):
    model = model_with(blocks={"kind": "gqa", "num_heads": heads[0], "num_kv_heads": heads[1]})
    attention = model.layers[0].mixer.branch
    with torch.autocast("cpu", torch.bfloat16):
        power = attention.write_power()
    assert power.dtype == torch.float32
    torch.testing.assert_close(power, product(attention).square().sum(), rtol=1e-5, atol=0)


def grow(model):
    with torch.no_grad():
        for layer in model.layers:
            layer.mixer.branch.o.weight *= 2


def test_c_is_refreshed_at_the_interval_in_training_only():
    model, ids = make_model(norm=bhyt(refresh=3)), make_ids()
    seen = []
    for _ in range(7):
        model(ids)
        seen.append(c_of(model))
        grow(model)
    first = seen[0]
    assert seen == pytest.approx([first, first, first, 64 * first, 64 * first, 64 * first, 64**2 * first])
    model.eval()
    for _ in range(7):
        model(make_ids(time=4))
    assert c_of(model) == seen[-1]
    assert model.layers[0].ffn.before.estimate.length.item() == 9


def test_before_training_c_follows_the_weights_and_the_window():
    model = make_model(norm="bhyt").eval()
    for time in (9, 5):
        with torch.inference_mode():
            model(make_ids(time=time))
        assert c_of(model) == pytest.approx(expected_c(model, time), rel=1e-5)
        grow(model)
    model.train()
    model(make_ids(time=7))
    assert c_of(model) == pytest.approx(expected_c(model, 7), rel=1e-5)


def test_a_loaded_model_equals_the_saved_one_and_refreshes_with_it():
    model, ids = make_model(norm=bhyt(refresh=3)), make_ids()
    for _ in range(2):
        model(ids)
        grow(model)
    stale = c_of(model)
    other = make_model(seed=1, norm=bhyt(refresh=3))
    other(make_ids(time=5))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(ids).hidden, model.eval()(ids).hidden)
    assert c_of(other) == stale
    for net in (model.train(), other.train()):
        net(ids)
        assert c_of(net) == stale
        net(ids)
        assert c_of(net) == pytest.approx(16 * stale)


def test_weights_loaded_without_c_get_their_own():
    model, ids = make_model(norm="bhyt"), make_ids()
    model(ids)
    before = c_of(model)
    weights = {k: v for k, v in model.state_dict().items() if ".estimate." not in k}
    weights |= {k: 3 * v for k, v in weights.items() if k.endswith("o.weight")}
    model.load_state_dict(weights, strict=False)
    model.eval()(ids)
    assert c_of(model) == pytest.approx(9 * before, rel=1e-5)


def test_a_model_from_the_meta_device_is_filled_or_loaded():
    config, ids = make_config(norm="bhyt"), make_ids()
    plain = Transformer(config, seed=3)
    plain(ids)
    for fill in (lambda m: m.reset_parameters(3), lambda m: m.load_state_dict(plain.state_dict())):
        with torch.device("meta"):
            model = Transformer(config, seed=3)
        model = model.to_empty(device="cpu")
        for buffer in model.buffers():
            buffer.fill_(77)
        fill(model)
        assert torch.equal(model(ids).hidden, plain(ids).hidden)
        assert c_of(model) == c_of(plain)


def test_a_forward_needs_no_values_at_first():
    """Sizes can be estimated on tensors without storage."""
    with FakeTensorMode():
        assert make_model(norm="bhyt")(make_ids()).hidden.shape == (2, 9, 16)


def test_loops_share_c_but_not_v1_and_equal_the_unrolled_model():
    looped, ids = redraw(make_model(depth=2, loops=3, norm="bhyt", regulators=["lns"])), make_ids()
    looped(ids)
    assert looped.layers[0].ffn.before.estimate.forwards.item() == 1  # once a forward, not once a visit
    flat = unroll(looped)
    assert torch.equal(looped(ids).hidden, flat(ids).hidden)
    assert [c_of(flat, visit.index) for visit in flat.plan.visits] == [
        c_of(looped, visit.layer) for visit in looped.plan.visits
    ]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo's own
def test_one_graph_serves_all_visits_and_every_c():
    model, eager, ids = (*(make_model(depth=3, loops=2, norm=bhyt(refresh=2)) for _ in range(2)), make_ids())
    counter = CompileCounter()
    model.compile_blocks(counter)
    for _ in range(5):
        assert torch.equal(model(ids).hidden, eager(ids).hidden)
        grow(model)
        grow(eager)
    assert counter.frame_count == 1


@pytest.mark.parametrize("placement", ["post", "reordered", "sandwich", "huginn"])
def test_placements_other_than_pre_are_refused(placement):
    with pytest.raises(ValueError, match=r"'bhyt' does not work after .*it supports before_branch"):
        make_config(norm="bhyt", placement=placement)


def test_estimates_are_refused_where_they_would_not_hold(monkeypatch):
    with pytest.raises(ValueError, match=r"stream 'hyper' is not; use exact"):
        make_config(norm="bhyt", stream="hyper")
    make_config(norm=bhyt(variance="exact"), stream="hyper")
    make_config(norm="bhyt", stream="embedding_skip")
    monkeypatch.delattr(GroupedQueryAttention, "write_power")
    with pytest.raises(ValueError, match=r"cannot estimate what mixer 'gqa' writes; use exact"):
        make_config(norm="bhyt")
    make_config(norm=bhyt(variance="exact"))


def test_outside_the_blocks_stands_rms_unless_named():
    model = make_model(norm=bhyt(eps=1e-3), embed_norm=True)
    for norm in (model.final_norm, model.embed_norm):
        assert (norm.kind, norm.config.eps) == ("rms", 1e-3)
    assert make_model(norm="bhyt", final_norm=False).final_norm.kind == "none"
    named = make_model(final_norm=bhyt(lambda_other=3.0))
    assert named.final_norm.kind == "bhyt"
    assert named.final_norm.bound.item() == 3.0
    named(make_ids())


@pytest.mark.parametrize("regulators", [[], ["layer_rope"]])
@pytest.mark.parametrize("mode", MODES)
def test_count_and_gradients(mode, regulators):
    model, ids = make_model(norm=bhyt(variance=mode), regulators=regulators), make_ids()
    assert account(model.config, 9).stored == sum(p.numel() for p in model.parameters())
    model(ids, ids).loss.backward()
    assert all((p.grad != 0).any() for p in model.parameters())
    assert model.layers[0].mixer.before.bound.item() == 2.0
