"""Stochastic depth: which visits drop, how often, and that everybody agrees."""

import pytest
import torch

from tests.models import make_config, make_ids, make_model, redraw


def dropping(depth=4, loops=1, **settings):
    return make_model(depth=depth, loops=loops, regulators=[{"kind": "layer_drop", **settings}])


def writes(model, step, training=True):
    return model.schedules(model.plan, None if step is None else torch.tensor(step), training).write


def test_visits_drop_as_often_as_they_should_and_are_scaled_up():
    model = dropping(rate=0.5)
    draws = torch.stack([writes(model, step) for step in range(2000)])
    assert torch.equal(draws[:, :, 0], draws[:, :, 1])
    for l in range(1, 5):
        kept = 1 - 0.5 * l / 4
        values = draws[:, l - 1, 0, 0]
        assert sorted(set(values.tolist())) == pytest.approx([0, 1 / kept])
        assert (values > 0).float().mean().item() == pytest.approx(kept, abs=0.04)
        assert values.mean().item() == pytest.approx(1, abs=0.08)


@pytest.mark.parametrize(
    ("correction", "kept", "evaluated"), [("training", 2, 1), ("evaluation", 1, 0.5), ("none", 1, 1)]
)
def test_corrections(correction, kept, evaluated):
    model = dropping(rate=0.5, growth="constant", correction=correction)
    drawn = torch.cat([writes(model, step).flatten() for step in range(50)])
    assert set(drawn.tolist()) == {0, kept}
    assert (writes(model, 3, training=False) == evaluated).all()


def test_the_draw_is_a_function_of_seed_and_step():
    model = dropping(depth=16, rate=0.5)
    assert torch.equal(writes(model, 7), writes(dropping(depth=16, rate=0.5), 7))
    assert not torch.equal(writes(model, 7), writes(model, 8))
    assert not torch.equal(writes(model, 7), writes(dropping(depth=16, rate=0.5, seed=1), 7))
    torch.manual_seed(0)
    first, second = writes(model, None), writes(model, None)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(writes(model, None), first)


def test_a_dropped_visit_passes_the_stream_on_and_evaluation_drops_none():
    model, ids, states = redraw(dropping(depth=8, rate=0.9)), make_ids(), []
    watch = lambda visit, before, after: states.append(torch.equal(before, after))  # noqa: E731
    model(ids, step=torch.tensor(1), observe=watch)
    dropped = (writes(model, 1)[:, 0, 0] == 0).tolist()
    assert states == dropped
    assert any(dropped)
    assert not all(dropped)
    plain = redraw(make_model(depth=8))
    assert torch.equal(model.eval()(ids).hidden, plain.eval()(ids).hidden)


def test_in_a_segment_visits_draw_what_they_would_in_the_whole_model():
    segments = [
        {"name": "a", "pattern": ["dense"], "repeat": 4},
        {"name": "b", "pattern": ["dense"], "repeat": 4, "loops": 2},
    ]
    regulator = {"kind": "layer_drop", "rate": 0.6}
    whole = writes(make_model(segments=segments, regulators=[regulator]), 2)
    segments[1]["regulators"] = [regulator]
    part = writes(make_model(segments=segments), 2)
    assert torch.equal(part[4:], whole[4:])
    assert (part[:4] == 1).all()


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_rates_outside_the_unit_interval_are_refused(rate):
    with pytest.raises(ValueError, match="rate"):
        make_config(regulators=[{"kind": "layer_drop", "rate": rate}])
