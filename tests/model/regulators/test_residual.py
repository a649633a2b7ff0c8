"""What is multiplied on what branches write: constants, learned scalars and vectors, loops."""

import pytest
import torch

from tests.models import make_config, make_ids, make_model, redraw


def writes(settings, **shape):
    model = make_model(regulators=[settings], **shape)
    return model.schedules(model.plan).write


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"scale": 0.5}, lambda l, total: 0.5),
        ({"count": "branches", "total_power": -0.5}, lambda l, total: (2 * total) ** -0.5),
        ({"scale": 2**-0.5, "total_power": -0.5}, lambda l, total: (2 * total) ** -0.5),
        ({"total_power": -1.0}, lambda l, total: 1 / total),
        ({"index_power": 0.25}, lambda l, total: l**0.25),
    ],
)
def test_residual_scale_values(settings, expected):
    write = writes({"kind": "residual_scale", **settings}, depth=8)
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


@pytest.mark.parametrize(("kind", "norm"), [("skip_init", "rms"), ("rezero", "none")])
def test_blocks_with_a_learned_scalar_start_as_the_identity(kind, norm):
    model, states = make_model(depth=3, regulators=[kind], norm=norm), []
    ids = make_ids()
    loss = model(ids, ids, observe=lambda visit, before, after: states.append((before, after))).loss
    assert all(torch.equal(before, after) for before, after in states)
    loss.backward()
    assert (model.schedules.regulators[0].table.gain.grad != 0).all()


def test_rezero_is_refused_under_a_norm_and_skip_init_is_not():
    with pytest.raises(ValueError, match=r"regulators\.rezero: works without a norm only; set norm: none"):
        make_config(regulators=["rezero"])
    assert make_config(regulators=["skip_init"], norm="none").regulators[0].kind == "skip_init"


@pytest.mark.parametrize(("depth", "epsilon"), [(18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6)])
def test_layer_scale_starts_at_the_published_value_for_the_depth(depth, epsilon):
    write = writes({"kind": "layer_scale"}, depth=depth)
    assert write.shape == (depth, 2, 16)
    assert (write == epsilon).all()


def test_layer_scale_takes_its_depth_from_the_whole_model_and_the_index():
    segments = [{"name": "a", "pattern": ["dense"], "repeat": 2, "loops": 9, "regulators": ["layer_scale"]}]
    segments += [{"name": "b", "pattern": ["dense"]}]
    model = make_model(segments=segments)
    assert model.schedules.regulators[0].table.gain.shape == (18, 2, 16)
    assert (model.schedules(model.plan).write[:18] == 1e-5).all()
    segments[0]["regulators"] = [{"kind": "layer_scale", "index": "stored"}]
    stored = make_model(segments=segments)
    assert stored.schedules.regulators[0].table.gain.shape == (2, 2, 16)
    assert (stored.schedules(stored.plan).write[:18] == 0.1).all()


@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        ({}, 1 / (12 * 16**0.5)),  # LOOM: m = 16 branches in a loop of 8 layers, R = 12
        ({"form": "residual"}, 1 / (12 * 8**0.5)),
        ({"form": "residual", "scale": 0.5}, 0.5 / (12 * 8**0.5)),
    ],
)
def test_loop_scale_counts_loops_and_the_layers_of_one_loop(settings, factor):
    write = writes({"kind": "loop_scale", **settings}, depth=8, loops=12)
    torch.testing.assert_close(write, torch.full((96, 2, 1), factor))


def test_loop_scale_looks_at_each_segment_alone():
    segments = [
        {"name": "prelude", "pattern": ["dense"], "repeat": 2},
        {"name": "core", "pattern": ["dense", "dense"], "repeat": 2, "loops": 3},
    ]
    write = writes({"kind": "loop_scale", "form": "residual"}, segments=segments)
    torch.testing.assert_close(write[:2], torch.full((2, 2, 1), 2**-0.5))
    torch.testing.assert_close(write[2:], torch.full((12, 2, 1), 1 / 6))
