"""CompleteP and depth-muP, from the config to an optimiser step."""

import pytest
import torch

from depthkit.training import optim
from depthkit.training.optimizers.adamw import AdamW
from tests.models import make_config, make_ids, make_model, redraw

NORMAL = {"kind": "normal", "std": 0.1}
HIDDEN = {"q", "k", "v", "o", "gate", "up", "down"}


def transferred(kind, **settings):
    """Four times as deep and twice as wide as the base."""
    regulator = {"kind": kind, "base_depth": 2, "base_dim": 16, **settings}
    return make_model(depth=4, loops=2, dim=32, init=NORMAL, norm="layer", regulators=[regulator])


@pytest.mark.parametrize(("kind", "alpha"), [("completep", 1.0), ("depth_mup", 0.5)])
def test_an_optimiser_step_uses_the_published_multipliers(kind, alpha):
    model = transferred(kind)
    lr, eps, decay, gradient = 0.1, 1e-3, 0.2, 1e-3
    groups = optim.parameter_groups(model)
    optimizer = AdamW(AdamW.Config(eps=eps, weight_decay=decay)).build(groups, lr)
    optim.set_lr(optimizer, lr)
    before = {name: p.detach().double().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    optimizer.step()
    for info in model.named_roles():
        inside = info.layer is not None
        rate = lr * (4 ** (alpha - 1) if inside else 1) * (0.5 if info.role in HIDDEN else 1)
        epsilon = eps * (4**-alpha / 2 if info.role in HIDDEN else 1)
        shrink = decay * {True: 2, False: 1}[info.role in HIDDEN] * (info.role in HIDDEN | {"head"})
        step = rate * gradient / (gradient + epsilon)  # both moments of the first step are the gradient's
        expected = before[info.name] * (1 - rate * shrink) - step
        torch.testing.assert_close(info.parameter.detach().double(), expected, rtol=1e-5, atol=1e-8)
    multipliers = {(g["lr_multiplier"], g["eps_multiplier"], g["decay_multiplier"]) for g in groups}
    assert len(multipliers) == 4 - (alpha == 1)  # hidden, norms and biases inside and outside, head


@pytest.mark.parametrize(("kind", "write"), [("completep", 0.25), ("depth_mup", 0.5)])
def test_branches_and_logits(kind, write):
    model = transferred(kind)
    gains = model.schedules(model.plan)
    assert (gains.write == write).all()
    assert gains.logits.tolist() == [0.5]
    assert (gains.read, gains.skip, gains.embed, gains.final) == (None,) * 4
    stored = transferred(kind, index="stored")
    assert (stored.schedules(stored.plan).write == (0.5 if kind == "completep" else 2**-0.5)).all()


def test_the_logits_gain_divides_logits_and_nothing_else():
    ids = make_ids()
    full = {"base_depth": None, "scale_init": False}
    models = (make_model(regulators=[{"kind": "completep", "base_dim": d, **full}]) for d in (16, 4))
    plain, wide = (redraw(model)(ids).hidden for model in models)
    torch.testing.assert_close(wide, plain / 4)


def test_hidden_matrices_start_smaller_by_the_root_of_width():
    model = transferred("completep")
    plain = make_model(depth=4, loops=2, dim=32, init=NORMAL, norm="layer")
    for info, (_, start) in zip(list(model.named_roles()), plain.named_parameters(), strict=False):
        factor = 2**-0.5 if info.role in HIDDEN else 1
        torch.testing.assert_close(info.parameter, start * factor)


def test_width_is_not_counted_twice():
    wide = {"kind": "completep", "base_dim": 8}
    with pytest.raises(ValueError, match="fan_in already shrinks with width"):
        make_config(regulators=[wide])
    assert make_config(regulators=[{**wide, "scale_init": False}])
    assert make_config(regulators=[wide], init="normal")
    assert make_config(regulators=[{**wide, "base_dim": 16}])


def test_depth_alone_is_the_default_from_base_depth_two():
    model = make_model(depth=6, regulators=["completep"])
    gains = model.schedules(model.plan)
    torch.testing.assert_close(gains.write, torch.full((6, 2, 1), 1 / 3))
    assert gains.logits.tolist() == [1.0]
    assert {info.rule for info in model.named_roles()} == {(1, 1, 1, 1), (1, 1, 3**-1.0, 1)}


def test_the_attention_scale_may_be_one_over_head_dim():
    mixer = {"kind": "gqa", "num_heads": 2, "num_kv_heads": 1, "scale_power": 1.0}
    scaled = redraw(make_model(blocks={"dense": {"mixer": mixer, "ffn": "swiglu"}}))
    plain, ids = redraw(make_model()), make_ids()
    assert not torch.allclose(scaled(ids).hidden, plain(ids).hidden)
    with torch.no_grad():
        for layer in plain.layers:
            layer.mixer.branch.q.weight /= 8**0.5  # as it is folded into q
    torch.testing.assert_close(scaled(ids).hidden, plain(ids).hidden)
