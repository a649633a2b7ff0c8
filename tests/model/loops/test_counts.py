"""Loop counts that a model is asked to run: more, fewer, by segment, and those it refuses."""

import warnings

import pytest
import torch

from depthkit.model import Transformer, account
from depthkit.model.registries import REGULATORS, STREAMS
from tests.model.loops.written import FULL, moe, segments
from tests.model.regulators import kit
from tests.models import make_config, make_ids, make_model, redraw


def caught(function):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = function()
    return result, [str(w.message) for w in found]


def test_more_loops_than_trained_warn_once_a_segment_and_take_the_last():
    two = [*segments(FULL)[:2], {**segments({**FULL})[1], "name": "again"}]
    model, ids = redraw(make_model(segments=two, stream="hyper", **moe(router="per_loop"))), make_ids()
    hidden, said = caught(lambda: [model(ids, loops=5).hidden for _ in range(2)][1])
    assert len(said) == 2
    for name, text in zip(("again", "core"), said, strict=True):
        assert text.startswith(f"segment '{name}' was never trained past 3 loops")
    assert torch.isfinite(hidden).all()
    _, said = caught(lambda: model(ids, loops={"core": 4}))
    assert [text[:14] for text in said] == ["segment 'core'"]
    assert caught(lambda: model(ids, loops=2))[1] == caught(lambda: model(ids, loops=3))[1] == []


@pytest.mark.parametrize("core", [{}, {"inject": "linear", "out_norm": True}], ids=str)
def test_nothing_is_said_where_nothing_was_learned_by_loop(core):
    model = make_model(segments=segments(core), regulators=["lns"])
    assert caught(lambda: model(make_ids(), loops=9))[1] == []


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ({"inject": "add"}, "inject.strength"),
        ({"inject": "gate"}, "inject.gate"),
        ({"loop_embedding": True}, "embedding"),
        ({"carry": "mean"}, "carry.strength"),
    ],
    ids=str,
)
def test_a_loop_beyond_takes_what_the_last_one_learned(setting, name):
    """A model trained for 5 loops whose last three rows are alike is one trained for 3 that runs 5."""
    three, five = (redraw(make_model(segments=segments(setting, loops))) for loops in (3, 5))
    state = three.state_dict()
    place = f"recurrences.core.{name}"
    for key, value in five.state_dict().items():
        value.copy_(state[key] if key != place else torch.cat([state[key], *[state[key][-1:]] * 2]))
    (more, said), ids = caught(lambda: three(make_ids(), loops=5)), make_ids()
    assert len(said) == 1
    assert torch.equal(more.hidden, five(ids).hidden)
    assert not torch.equal(more.hidden, three(ids).hidden)


@pytest.mark.parametrize("stream", STREAMS.names())
def test_every_stream_runs_any_number_of_loops(stream):
    core = {} if stream == "attention_residual" else FULL
    model, ids = redraw(make_model(segments=segments(core), stream=stream)), make_ids()
    outputs = [caught(lambda loops=loops: model(ids, loops=loops).hidden)[0] for loops in (1, 2, 3, 6)]
    assert all(torch.isfinite(hidden).all() for hidden in outputs)
    assert torch.equal(outputs[2], model(ids).hidden)
    assert len({hidden.sum().item() for hidden in outputs}) == 4


@pytest.mark.parametrize("case", kit.defaults(), ids=str)
def test_every_regulator_runs_any_number_of_loops(case):
    model, ids = redraw(case.model(segments=segments(), depth=0)).eval(), make_ids()
    for loops in (1, 2, 5):
        hidden = caught(lambda loops=loops: model(ids, loops=loops).hidden)[0]
        assert torch.isfinite(hidden).all()


@pytest.mark.parametrize("name", REGULATORS.names())
def test_with_sampled_loops_no_gain_outside_the_loops_moves(name):
    """The depth index is then the nominal one: what follows the loops has the same gains at every count."""
    sampled = {"kind": "uniform", "max": 5}
    model = redraw(kit.Case(name).model(segments=segments(loops=sampled))).eval()
    ends = []
    for loops in (1, 3, 5):
        plan = model.plan_at(loops)
        gains = model.schedules(plan)
        assert plan.depth == 2 + 2 * loops
        ends.append([g[[0, -1]] for g in (gains.read, gains.write, gains.skip) if g is not None])
    for other in ends[1:]:
        assert all(torch.equal(a, b) for a, b in zip(ends[0], other, strict=True))


def test_lns_of_the_coda_stays_at_its_nominal_depth():
    sampled = make_model(segments=segments(loops={"kind": "uniform", "max": 5}), regulators=["lns"])
    fixed = make_model(segments=segments(loops=3), regulators=["lns"])
    for loops, executed in ((1, 4), (5, 12)):
        moved, still = (m.schedules(m.plan_at(loops)).read[-1, 0, 0].item() for m in (fixed, sampled))
        assert moved == pytest.approx(executed**-0.5)
        assert still == pytest.approx(8**-0.5)
    beyond = sampled.schedules(sampled.plan_at(4)).read[:, 0, 0]
    assert beyond.tolist() == pytest.approx([i**-0.5 for i in (1, 2, 3, 4, 5, 6, 7, 6, 7, 8)])


def test_counts_go_to_looped_segments_or_by_name():
    model = make_model(segments=segments())
    assert model.plan_at(4).loops == {"prelude": 1, "core": 4, "coda": 1}
    assert model.plan_at({"coda": 2}).loops == {"prelude": 1, "core": 3, "coda": 2}
    assert model.plan_at(4) is model.plan_at(4)


@pytest.mark.parametrize(
    ("core", "loops", "message"),
    [
        ({}, {"cor": 2}, "unknown segment 'cor'; did you mean 'core'"),
        ({}, 0, "segment 'core' can be run 1 or more times, not 0"),
        ({"shared": False}, 4, "segment 'core' can be run 1 to 3 times, not 4"),
        ({"shared": False}, {"core": -1}, "segment 'core' can be run 1 to 3 times, not -1"),
    ],
    ids=str,
)
def test_counts_that_cannot_be_run_are_refused(core, loops, message):
    model = make_model(segments=segments(core))
    with pytest.raises(ValueError, match=f"loops: {message}"):
        model(make_ids(), loops=loops)


def test_unshared_loops_have_layers_of_their_own():
    model, ids = redraw(make_model(segments=segments({"shared": False}))), make_ids()
    assert [v.layer for v in model.plan.visits] == list(range(8))
    assert [v.layer for v in model.plan_at(2).visits] == [0, 1, 2, 3, 4, 7]
    assert not torch.equal(model(ids, loops=2).hidden, model(ids).hidden)
    sampled = make_config(segments=segments({"shared": False}, {"kind": "uniform", "max": 4}))
    assert len(Transformer(sampled).layers) == 10


RANDOM = {"inject": "linear", "state_init": "normal", "loop_embedding": True, "out_norm": True}
SAMPLED = {"kind": "uniform", "max": 4, "backprop": 2}
GRID = {
    "looped": ({}, 3, {}),
    "full": (FULL, 3, {}),
    "random": (RANDOM, SAMPLED, {}),
    "learned carry": ({**FULL, "carry": "learned", "inject": "gate"}, SAMPLED, {}),
    "unshared": ({**FULL, "shared": False}, {"kind": "uniform", "max": 4}, {}),
    "moe": (FULL, SAMPLED, moe(bias_rate=0.1)),
    "per_loop": ({}, SAMPLED | {"backprop": None}, moe(router="per_loop", shared_experts=2)),
    "shared_bias": ({"shared": False}, 3, moe(router="shared_bias", expert="gelu")),
    "streams": (FULL, SAMPLED, {"stream": "hyper", "regulators": ["layer_scale"]}),
}


@pytest.mark.parametrize("name", GRID)
def test_stored_parameters_are_counted(name):
    core, loops, settings = GRID[name]
    config = make_config(segments=segments(core, loops), **settings)
    assert account(config, 9).stored == sum(p.numel() for p in Transformer(config).parameters())


@pytest.mark.parametrize("name", GRID)
def test_meta_construction_then_reset_equals_direct_construction(name):
    core, loops, settings = GRID[name]
    config = make_config(segments=segments(core, loops), **settings)
    with torch.device("meta"):
        model = Transformer(config, seed=3)
    model = model.to_empty(device="cpu")
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.detach().fill_(torch.nan)
    model.reset_parameters(3)
    direct = Transformer(config, seed=3).state_dict()
    assert model.state_dict().keys() == direct.keys()
    assert any("choice_bias" in key for key in direct) == (name == "moe")
    for key, value in direct.items():
        assert torch.equal(model.state_dict()[key], value), key
    assert torch.equal(model(make_ids()).hidden, Transformer(config, seed=3)(make_ids()).hidden)
