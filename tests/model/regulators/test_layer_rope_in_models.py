"""LayerRoPE inside whole models: loops, other depths, segments, construction, precision, great depth."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from depthkit.model import Transformer, account, unroll
from tests.model.regulators.ropes import FORMS, STARTS, regulator, rope, rope_model
from tests.models import make_config, make_ids, make_model, redraw


@pytest.mark.parametrize("form", FORMS)
def test_depth_counts_visits_in_loops_and_looped_equals_unrolled(form):
    model, ids = rope_model(depth=2, loops=3, form=form, rotation=True), make_ids()
    read = model.schedules(model.plan).read[:, 0, 0]
    torch.testing.assert_close(read, torch.arange(1.0, 7) ** -0.5)
    redraw(model)
    assert torch.equal(model(ids).hidden, unroll(model)(ids).hidden)
    stored = rope_model(depth=2, loops=3, form=form, index="stored")
    read = stored.schedules(stored.plan).read[:, 0, 0]
    torch.testing.assert_close(read, torch.tensor([1.0, 2, 1, 2, 1, 2]) ** -0.5)


def test_another_depth_recomputes_the_basis_and_interpolates_the_table():
    deeper = make_config(depth=8).plan()
    for form in ("basis", "fixed"):
        model = rope_model(depth=4, form=form)
        got = regulator(model).gains(deeper, None, False)
        power = math.log(4) / math.log(8) if form == "basis" else 1.0  # coefficients are kept, ln L changes
        torch.testing.assert_close(got.read[:, 0, 0], torch.arange(1.0, 9) ** (-0.5 * power))
    table = rope_model(depth=4, form="table")
    with torch.no_grad():
        regulator(table).read.copy_(torch.tensor([[1.0, 0], [2, 0], [4, 0], [8, 0]]))
    got = regulator(table).gains(deeper, None, False).read[:, 0, 0].log()
    torch.testing.assert_close(got, torch.tensor([1, 1, 1.5, 2, 3, 4, 6, 8]))
    shallower = regulator(table).gains(make_config(depth=2).plan(), None, False).read[:, 0, 0].log()
    torch.testing.assert_close(shallower, torch.tensor([2.0, 8]))


@pytest.mark.parametrize("placement", ["post", "reordered", "huginn", [0, 0, 0], [1, 1, 1]])
def test_other_placements_are_refused_with_the_reason(placement):
    with pytest.raises(ValueError, match=r"layer_rope: .*pre or sandwich"):
        make_config(placement=placement, regulators=["layer_rope"])


def test_in_one_segment_other_norms_keep_their_gains():
    segments = [
        {"name": "a", "pattern": ["dense"], "regulators": ["layer_rope"]},
        {"name": "b", "pattern": ["dense"], "repeat": 2, "placement": "post"},
    ]
    model, ids = make_model(segments=segments), make_ids()
    names = set(model.state_dict())
    assert "layers.0.mixer.before.weight" not in names
    assert {"layers.1.mixer.after_add.weight", "final_norm.weight"} <= names
    assert model.schedules(model.plan).final is None
    assert sum(p.numel() for p in model.parameters()) == account(model.config, 9).stored
    model(ids, ids).loss.backward()
    assert all((p.grad != 0).any() for p in model.parameters())
    segments[1] |= {"placement": "pre", "regulators": [rope(form="table")]}
    tables = make_model(segments=segments).schedules.regulators[1]
    assert tables.read.shape == (2, 2)
    segments[0]["regulators"] = [rope(final=True)]
    with pytest.raises(ValueError, match="final must be false in a segment"):
        make_config(segments=segments)


def test_where_every_segment_has_its_own_only_the_final_norm_is_left():
    segments = [{"name": "a", "pattern": ["dense"], "regulators": []}]
    model = make_model(segments=segments, regulators=[rope(rotation=True)])
    gains = model.schedules(model.plan)
    assert gains.final is not None
    assert gains.read is None or torch.equal(gains.read, torch.ones_like(gains.read))


def test_meta_construction_then_reset_equals_direct_construction():
    config = make_config(regulators=[rope(rotation=True, form="table")])
    with torch.device("meta"):
        model = Transformer(config)
    model = model.to_empty(device="cpu")
    model.reset_parameters()
    for (name, a), (_, b) in zip(
        model.state_dict().items(), Transformer(config).state_dict().items(), strict=True
    ):
        assert torch.equal(a, b), name
    assert torch.equal(model(make_ids()).hidden, Transformer(config)(make_ids()).hidden)


def test_gains_need_no_values():
    """Sizes can be estimated on tensors without storage."""
    with FakeTensorMode():
        for placement in ("pre", "sandwich"):
            gains = make_model(regulators=[rope(rotation=True)], placement=placement).schedules
            assert gains(make_config().plan()).read.shape == (2, 2, 16)


def test_gains_are_fp32_under_autocast():
    model = rope_model()
    plain = model.schedules(model.plan).read
    with torch.autocast("cpu", torch.bfloat16):
        cast = model.schedules(model.plan).read
    assert torch.equal(plain, cast)


def takes_steps(depth, steps, **settings):
    model = rope_model(depth=depth, **settings)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(steps):
        ids = make_ids(1, 8, seed=step)
        loss = model(ids, ids).loss
        optimizer.zero_grad()
        loss.backward()
        assert torch.isfinite(loss)
        assert all(torch.isfinite(p.grad).all() for p in model.parameters())
        optimizer.step()


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("depth", "steps"), [(8, 5), (32, 2)])
def test_deep_models_stay_finite(depth, steps, start):
    takes_steps(depth, steps, init=start, rotation=True)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("depth", "steps"), [(8, 20), (64, 20), (256, 20), (512, 20)])
def test_very_deep_models_stay_finite(depth, steps, form):
    takes_steps(depth, steps, form=form)
