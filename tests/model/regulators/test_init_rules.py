"""Scaled and depth-scaled initialisation."""

import pytest
import torch

from tests.models import make_model


def factors(regulator, **shape):
    """Initial value of every matrix as a multiple of what it is without the regulator."""
    scaled, plain = make_model(regulators=[regulator], **shape), make_model(**shape)
    pairs = zip(scaled.named_parameters(), plain.named_parameters(), strict=True)
    return {name: (a / b).mean().item() for (name, a), (_, b) in pairs}


def test_scaled_init_shrinks_output_projections_only():
    for name, factor in factors("scaled_init", depth=8).items():
        expected = 0.25 if name.endswith(("o.weight", "down.weight")) else 1.0
        assert factor == pytest.approx(expected, rel=1e-6), name


def test_depth_scaled_init_shrinks_every_matrix_of_block_l():
    found = factors("depth_scaled_init", depth=4)
    for role in ("mixer.branch.q", "mixer.branch.o", "ffn.branch.gate", "ffn.branch.down"):
        values = [found[f"layers.{layer}.{role}.weight"] for layer in range(4)]
        assert values == pytest.approx([1, 2**-0.5, 3**-0.5, 0.5], rel=1e-6)
    assert found["layers.3.mixer.before.weight"] == found["embed.weight"] == found["head.weight"] == 1


def test_outputs_only_leaves_the_other_matrices():
    found = factors({"kind": "depth_scaled_init", "outputs_only": True}, depth=4)
    assert found["layers.3.mixer.branch.o.weight"] == pytest.approx(0.5)
    assert found["layers.3.ffn.branch.down.weight"] == pytest.approx(0.5)
    assert found["layers.3.mixer.branch.q.weight"] == found["layers.3.ffn.branch.up.weight"] == 1


def test_a_looped_layer_is_initialised_for_its_first_visit():
    segments = [
        {"name": "core", "pattern": ["dense"], "loops": 3},
        {"name": "coda", "pattern": ["dense"]},
    ]
    for index, coda in (("executed", 0.5), ("stored", 2**-0.5)):
        found = factors({"kind": "depth_scaled_init", "index": index}, segments=segments)
        assert found["layers.0.mixer.branch.q.weight"] == 1
        assert found["layers.1.mixer.branch.q.weight"] == pytest.approx(coda)


def test_learning_is_not_ruled():
    for kind in ("scaled_init", "depth_scaled_init"):
        model = make_model(regulators=[kind])
        assert all(info.rule[1:] == (1, 1, 1) for info in model.named_roles())
        assert model.schedules(model.plan).read is None


def test_initialisations_multiply():
    both = make_model(depth=2, regulators=["scaled_init", "depth_scaled_init"])
    plain = make_model(depth=2)
    ratio = both.layers[1].mixer.branch.o.weight / plain.layers[1].mixer.branch.o.weight
    torch.testing.assert_close(ratio, torch.full_like(ratio, 8**-0.5))
