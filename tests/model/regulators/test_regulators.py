"""Every registered regulator, each against an independent statement of its gains and rules."""

import pytest
import torch

from depthkit.model import Transformer
from depthkit.model.gains import BRANCHES, Gains, per_site
from depthkit.model.registries import REGULATORS
from depthkit.model.regulators.base import Regulator
from tests.models import make_config, make_ids, make_model, redraw

NEUTRAL = {
    "lns": {"exponent": 0.0},
    "residual_scale": {},
    "scaled_init": {"exponent": 0.0},
}


def gains_of(regulator, depth=16, loops=1):
    model = make_model(depth=depth, loops=loops, regulators=[regulator])
    return model.schedules(model.plan)


def test_every_kind_declares_a_neutral_setting_here_and_its_documentation():
    assert set(NEUTRAL) == set(REGULATORS.names())
    for name in REGULATORS.names():
        cls = REGULATORS.get(name)
        assert cls.equation, name
        assert cls.source, name


@pytest.mark.parametrize("kind", sorted(NEUTRAL))
def test_neutral_settings_equal_no_regulator_bitwise(kind):
    ids = make_ids()
    plain = make_model(depth=4)(ids, ids)
    neutral = make_model(depth=4, regulators=[{"kind": kind, **NEUTRAL[kind]}])(ids, ids)
    assert torch.equal(plain.loss, neutral.loss)
    assert torch.equal(plain.hidden, neutral.hidden)


def test_lns_factors():
    read = gains_of("lns").read
    assert read.shape == (16, len(BRANCHES), 1)
    for l, factor in [(1, 1.0), (4, 0.5), (9, 1 / 3), (16, 0.25)]:
        torch.testing.assert_close(read[l - 1], torch.full((2, 1), factor))
    assert gains_of("lns").write is None
    assert gains_of("lns").final is None


def test_lns_damps_what_both_branches_read():
    """A pre-norm model with LNS equals one whose norm gains are divided by sqrt(l)."""
    regulated, plain = redraw(make_model(depth=4, regulators=["lns"])), redraw(make_model(depth=4))
    with torch.no_grad():
        for index, layer in enumerate(plain.layers):
            for site in (layer.mixer, layer.ffn):
                site.before.weight /= (index + 1) ** 0.5
    ids = make_ids()
    torch.testing.assert_close(regulated(ids, ids).loss, plain(ids, ids).loss)


def test_lns_at_depth_one_is_pre_ln_bitwise():
    ids = make_ids()
    assert torch.equal(make_model(depth=1, regulators=["lns"])(ids).hidden, make_model(depth=1)(ids).hidden)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"scale": 0.5}, lambda l, total: 0.5),
        ({"scale": 2**-0.5, "total_power": -0.5}, lambda l, total: (2 * total) ** -0.5),
        ({"total_power": -1.0}, lambda l, total: 1 / total),
        ({"index_power": 0.25}, lambda l, total: l**0.25),
    ],
)
def test_residual_scale_values(settings, expected):
    write = gains_of({"kind": "residual_scale", **settings}, depth=8).write
    torch.testing.assert_close(write[:, 0, 0], torch.tensor([expected(l, 8) for l in range(1, 9)]))
    assert torch.equal(write[:, 0], write[:, 1])


def test_residual_scale_multiplies_what_both_branches_write():
    scaled = redraw(make_model(depth=3, regulators=[{"kind": "residual_scale", "scale": 0.3}]))
    plain = redraw(make_model(depth=3))
    with torch.no_grad():
        for layer in plain.layers:
            layer.mixer.branch.o.weight *= 0.3
            layer.ffn.branch.down.weight *= 0.3
    ids = make_ids()
    torch.testing.assert_close(scaled(ids, ids).loss, plain(ids, ids).loss)


def test_scaled_init_shrinks_output_projections_only():
    scaled, plain = make_model(depth=8, regulators=["scaled_init"]), make_model(depth=8)
    for (name, a), (_, b) in zip(scaled.named_parameters(), plain.named_parameters(), strict=True):
        factor = 0.25 if name.endswith(("o.weight", "down.weight")) else 1.0
        torch.testing.assert_close(a, b * factor)


def test_depth_index_in_loops():
    executed = gains_of("lns", depth=2, loops=3).read[:, 0, 0]
    stored = gains_of({"kind": "lns", "index": "stored"}, depth=2, loops=3).read[:, 0, 0]
    torch.testing.assert_close(executed, torch.arange(1, 7).float() ** -0.5)
    torch.testing.assert_close(stored, torch.tensor([1, 2, 1, 2, 1, 2]).float() ** -0.5)
    assert torch.equal(
        gains_of({"kind": "lns", "index": "nominal"}, depth=2, loops=3).read[:, 0, 0], executed
    )


def test_regulators_compose_by_multiplying():
    config = [{"kind": "residual_scale", "scale": 0.5}, "lns", {"kind": "residual_scale", "scale": 0.25}]
    gains = make_model(regulators=config).schedules(make_config().plan())
    torch.testing.assert_close(gains.write, torch.full((2, 2, 1), 0.125))
    torch.testing.assert_close(gains.read[:, 0, 0], torch.tensor([1.0, 2**-0.5]))


@pytest.mark.parametrize("kind", sorted(NEUTRAL))
@pytest.mark.parametrize("depth", [8, 64])
def test_deep_models_stay_finite(kind, depth):
    model = make_model(depth=depth, regulators=[kind])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(3):
        ids = make_ids(1, 8, seed=step)
        loss = model(ids, ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert torch.isfinite(loss)
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize("kind", sorted(NEUTRAL))
def test_parameters_are_as_declared_and_get_gradients(kind):
    model, plain = make_model(depth=3, regulators=[kind]), make_model(depth=3)
    declared = model.config.regulators[0].num_parameters(model.plan, 16)
    count = lambda m: sum(p.numel() for p in m.parameters())  # noqa: E731
    assert count(model) - count(plain) == declared
    ids = make_ids()
    model(ids, ids).loss.backward()
    assert all(p.grad is not None for p in model.schedules.parameters())


def test_a_toy_regulator_is_one_class_and_learns():
    """A learned skip gain: a new kind reaches the config, the gains, the count and the gradients by itself."""

    @REGULATORS.register("toy_skip")
    class ToySkip(Regulator):
        """A learned scalar on the carried stream, one a visit."""

        class Config(Regulator.Config):
            def num_parameters(self, plan, dim):
                return plan.depth

        def __init__(self, config, dim):
            super().__init__(config, dim)
            self.log_skip = torch.nn.Parameter(torch.zeros(3))
            self.parameter_roles = {"log_skip": "schedule"}

        def reset_parameters(self):
            torch.nn.init.zeros_(self.log_skip)

        def gains(self, plan, step, training):
            return Gains(skip=self.log_skip.exp()[:, None, None].expand(-1, 2, 1))

    try:
        model = Transformer(make_config(depth=3, regulators=["toy_skip"]))
        ids = make_ids()
        output = model(ids, ids)
        assert torch.equal(output.hidden, make_model(depth=3)(ids).hidden)
        output.loss.backward()
        assert (model.schedules.regulators[0].log_skip.grad != 0).all()
    finally:
        REGULATORS.remove("toy_skip")


def test_gains_within_a_mask_are_neutral_elsewhere():
    gains = Gains(read=per_site([2.0, 3.0, 4.0])).within(torch.tensor([True, False, True]))
    assert gains.read[:, 0, 0].tolist() == [2.0, 1.0, 4.0]
    assert gains.write is None
