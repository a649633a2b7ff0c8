"""DeepNorm, DeepLoop and Keel: constants on the carried stream of blocks that normalise after the add."""

import pytest
import torch

from depthkit.model import ModelConfig
from depthkit.model.placement import PLACEMENTS
from tests.models import make_config, make_ids, make_model, model_dict


def deep(kind, **shape):
    return make_model(regulators=[kind], placement="post", norm="layer", **shape)


@pytest.mark.parametrize(
    ("depth", "alpha", "beta"), [(12, 2.213, 0.319), (24, 2.632, 0.269), (32, 2.828, 0.25)]
)
def test_deepnorm_values(depth, alpha, beta):
    model = deep("deepnorm", depth=depth)
    skip = model.schedules(model.plan).skip
    assert skip.flatten().tolist() == pytest.approx([alpha] * (2 * depth), abs=5e-4)
    shrunk = {i.role for i in model.named_roles() if i.rule.init != 1}
    assert shrunk == {"v", "o", "up", "down"}
    assert {round(i.rule.init, 3) for i in model.named_roles() if i.rule.init != 1} == {beta}


def test_deeploop_is_deepnorm_with_the_root_of_depth():
    for kind, power in (("deeploop", 0.5), ({"kind": "deeploop", "exponent": 0.25}, 0.25)):
        model = deep(kind, depth=2, loops=4)
        torch.testing.assert_close(model.schedules(model.plan).skip, torch.full((8, 2, 1), 16**power))
        assert {i.rule.init for i in model.named_roles() if i.role == "down"} == {64**-power}
    ids = make_ids()
    quarter = deep({"kind": "deeploop", "exponent": 0.25}, depth=3)(ids).hidden
    assert torch.equal(quarter, deep("deepnorm", depth=3)(ids).hidden)


def test_a_gated_branch_starts_smaller_by_beta_squared_like_the_two_matrix_one():
    beta = (8 * 2) ** -0.25
    for ffn in ("swiglu", "gelu"):
        blocks = {"dense": {"mixer": {"kind": "gqa", "num_heads": 2}, "ffn": ffn}}
        plain, small = (
            make_model(blocks=blocks),
            make_model(blocks=blocks, placement="post", regulators=["deepnorm"]),
        )
        h = 1e-3 * torch.randn(1, 3, 16)  # small, where both activations are linear
        after, before = (model.layers[0].ffn.branch(h, None)[0].norm().item() for model in (small, plain))
        assert after / before == pytest.approx(beta**2, rel=2e-3)


@pytest.mark.parametrize("kind", ["deepnorm", "deeploop", "keel"])
def test_other_placements_and_no_norm_are_refused(kind):
    own = {"deepnorm": ["post"], "deeploop": ["post", "huginn"], "keel": ["huginn"]}[kind]
    for placement in set(PLACEMENTS) - set(own):
        refusal = rf"{kind}: works under placement {' or '.join(own)} only; set placement: {own[0]}"
        with pytest.raises(ValueError, match=refusal):
            make_config(regulators=[kind], placement=placement)
    with pytest.raises(ValueError, match=f"{kind}: needs a norm"):
        make_config(regulators=[kind], placement=own[0], norm="none")
    for placement in own:
        assert make_config(regulators=[kind], placement=list(PLACEMENTS[placement]))


def test_the_refusal_names_the_segment():
    segments = [
        {"name": "low", "pattern": ["dense"], "placement": "post"},
        {"name": "high", "pattern": ["dense"]},
    ]
    with pytest.raises(ValueError, match=r"regulators\.deepnorm.*segment 'high'"):
        make_config(segments=segments, regulators=["deepnorm"])
    segments[1]["regulators"] = []
    assert make_config(segments=segments, regulators=["deepnorm"])
    segments[1]["regulators"] = ["deepnorm"]
    with pytest.raises(ValueError, match=r"segments\.high\.deepnorm"):
        make_config(segments=segments)


def test_there_is_no_final_norm_unless_asked_for():
    for kind in ("deepnorm", "deeploop"):
        config = make_config(regulators=[kind], placement="post")
        assert config.outer_norm("final_norm") is None
        assert not config.advice()
        assert ModelConfig.model_validate(config.model_dump()).outer_norm("final_norm") is None
    assert make_config(regulators=["deepnorm"], placement="post", final_norm=True).outer_norm("final_norm")
    assert make_config(regulators=["keel"], placement="huginn").outer_norm("final_norm").kind == "rms"
    assert make_config(placement="post").outer_norm("final_norm").kind == "rms"


def test_only_the_last_segment_decides_on_the_final_norm():
    segments = [
        {"name": "low", "pattern": ["dense"], "placement": "post", "regulators": ["deepnorm"]},
        {"name": "high", "pattern": ["dense"]},
    ]
    assert make_config(segments=segments).outer_norm("final_norm").kind == "rms"
    segments[1] |= {"placement": "post"}
    raw = {**model_dict(), "segments": segments[::-1]}
    assert ModelConfig.model_validate(raw).outer_norm("final_norm") is None


@pytest.mark.parametrize(
    ("settings", "alpha"), [({}, 24.0), ({"index": "stored"}, 8.0), ({"alpha": 4.0}, 4.0)]
)
def test_keel_counts_branches(settings, alpha):
    model = make_model(depth=4, loops=3, placement="huginn", regulators=[{"kind": "keel", **settings}])
    gains = model.schedules(model.plan)
    assert (gains.skip == alpha).all()
    assert (gains.read, gains.write) == (None, None)
    assert model.config.outer_norm("final_norm").kind == "rms"
