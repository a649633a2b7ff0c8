"""LayerNorm Scaling in its forms, and what depth index and count mean."""

import pytest
import torch

from depthkit.model import Transformer, unroll
from tests.model.regulators.kit import Case
from tests.models import make_config, make_ids, make_model, redraw


def reads(settings, **shape):
    model = make_model(regulators=[{"kind": "lns", **settings}], **shape)
    return model.schedules(model.plan).read


def test_published_factors_are_the_same_for_both_branches_and_leave_the_final_norm():
    model = make_model(depth=16, regulators=["lns"])
    gains = model.schedules(model.plan)
    assert gains.read.shape == (16, 2, 1)
    for l, factor in [(1, 1.0), (4, 0.5), (9, 1 / 3), (16, 0.25)]:
        torch.testing.assert_close(gains.read[l - 1], torch.full((2, 1), factor))
    assert (gains.write, gains.skip, gains.embed, gains.final, gains.logits) == (None,) * 5


def test_one_layer_equals_pre_ln_bitwise():
    ids = make_ids()
    assert torch.equal(make_model(depth=1, regulators=["lns"])(ids).hidden, make_model(depth=1)(ids).hidden)


def test_it_is_what_norm_gains_divided_by_the_root_of_l_would_do():
    regulated, plain = redraw(make_model(depth=4, regulators=["lns"])), redraw(make_model(depth=4))
    with torch.no_grad():
        for index, layer in enumerate(plain.layers):
            for site in (layer.mixer, layer.ffn):
                site.before.weight /= (index + 1) ** 0.5
    ids = make_ids()
    torch.testing.assert_close(regulated(ids, ids).loss, plain(ids, ids).loss)


def test_factors_survive_construction_on_the_meta_device():
    with torch.device("meta"):
        model = Transformer(make_config(depth=4, regulators=["lns"]))
    model = model.to_empty(device="cpu")
    model.reset_parameters()
    assert model.schedules(model.plan).read[3].flatten().tolist() == [0.5, 0.5]


@pytest.mark.parametrize("placement", ["pre", "sandwich", "huginn"])
@pytest.mark.parametrize("count", ["blocks", "branches"])
def test_all_forms_start_at_the_same_function(placement, count):
    ids, shape = make_ids(), {"depth": 4, "placement": placement}
    fixed = make_model(regulators=[{"kind": "lns", "count": count}], **shape)(ids).hidden
    for form in ("folded", "learned"):
        regulator = {"kind": "lns", "count": count, "form": form}
        torch.testing.assert_close(make_model(regulators=[regulator], **shape)(ids).hidden, fixed)
    assert not torch.equal(make_model(**shape)(ids).hidden, fixed)


def test_folding_touches_no_other_norm_gain():
    blocks = {"dense": {"mixer": {"kind": "gqa", "num_heads": 2, "qk_norm": True}, "ffn": "gelu"}}
    regulators = [{"kind": "lns", "form": "folded"}]
    model = make_model(depth=4, blocks=blocks, placement="sandwich", regulators=regulators)
    for info in model.named_roles():
        if info.role == "norm":
            before = ".before." in info.name
            assert (info.parameter == ((info.layer + 1) ** -0.5 if before else 1)).all(), info.name
    assert model.schedules(model.plan).read is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"placement": "post"}, "needs a norm with a gain before the branch"),
        ({"norm": "none"}, "needs a norm with a gain before the branch"),
        ({"loops": 2}, "set index: stored"),
    ],
)
def test_folding_is_refused_where_no_gain_can_hold_the_factor(change, reason):
    with pytest.raises(ValueError, match=reason):
        make_config(regulators=[{"kind": "lns", "form": "folded"}], **change)


def test_branches_are_counted_through_the_blocks():
    counted = reads({"count": "branches"}, depth=3).flatten()
    torch.testing.assert_close(counted, torch.arange(1, 7).float() ** -0.5)


def test_depth_index_in_loops():
    executed, nominal = (reads({"index": i}, depth=2, loops=3)[:, 0, 0] for i in ("executed", "nominal"))
    stored = reads({"index": "stored"}, depth=2, loops=3)[:, 0, 0]
    torch.testing.assert_close(executed, torch.arange(1, 7).float() ** -0.5)
    torch.testing.assert_close(stored, torch.tensor([1, 2, 1, 2, 1, 2]).float() ** -0.5)
    assert torch.equal(nominal, executed)


def test_unrolling_keeps_the_stored_index():
    looped = redraw(make_model(depth=2, loops=3, regulators=[{"kind": "lns", "index": "stored"}]))
    ids, flat = make_ids(), unroll(looped)
    assert torch.equal(flat.schedules(flat.plan).read, looped.schedules(looped.plan).read)
    assert torch.equal(flat(ids).hidden, looped(ids).hidden)


def test_learned_gains_are_one_a_site_or_with_stored_index_one_a_layer_and_branch():
    shapes = {"executed": (6, 2, 1), "stored": (2, 2, 1)}
    for index, shape in shapes.items():
        model = Case("lns", {"form": "learned", "index": index}).model(depth=2, loops=3)
        assert model.schedules.regulators[0].table.gain.shape == shape


def test_a_loop_the_table_was_not_trained_for_takes_its_last_loop_with_a_warning():
    model = redraw(Case("lns", {"form": "learned"}).model(depth=2, loops=2))
    with pytest.warns(UserWarning, match="'trunk' was never trained past 2 loops"):
        more = model.plan_at(3)
    gains = model.schedules(more).read
    torch.testing.assert_close(gains[:4], model.schedules(model.plan).read)
    assert torch.equal(gains[4:], gains[2:4])
