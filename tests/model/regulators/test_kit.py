"""Every registered regulator through the kit."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from depthkit.model import ModelConfig, Transformer, account, unroll
from depthkit.model.placement import PLACEMENTS
from depthkit.model.registries import REGULATORS
from tests.model.regulators import kit, statements
from tests.models import make_ids, model_dict, redraw

every_kind = pytest.mark.parametrize("case", kit.defaults(), ids=str)
every_case = pytest.mark.parametrize("case", kit.stated(), ids=str)


@every_kind
def test_it_is_documented_and_stated(case):
    cls = REGULATORS.get(case.kind)
    assert cls.equation
    assert cls.source
    assert len(cls.__doc__) > 40
    assert all(field.description for name, field in cls.Config.model_fields.items() if name != "kind")
    assert case.kind in statements.NAMES


@every_case
def test_it_is_its_equation(case):
    kit.check_equation(case)


@every_case
def test_its_rules_are_as_stated(case):
    kit.check_rules(case)


@pytest.mark.parametrize(
    "case",
    [kit.Case(name, n) for name in REGULATORS.names() if (n := REGULATORS.get(name).neutral) is not None],
    ids=str,
)
def test_neutral_settings_equal_no_regulator_bitwise(case):
    kit.check_neutral(case)


@every_kind
def test_meta_construction_equals_direct_construction(case):
    kit.check_meta(case)


@every_case
def test_looped_equals_tied_unrolled(case):
    looped = redraw(case.model(depth=2, loops=3))
    flat = unroll(looped)
    assert len(flat.layers) == 6
    for expected, actual in zip(kit.run(looped), kit.run(flat), strict=True):
        assert torch.equal(expected, actual)


@every_case
def test_parameter_count_is_the_closed_form(case):
    model = case.model(depth=3, loops=2)
    assert account(model.config, 9).stored == sum(p.numel() for p in model.parameters())


@every_case
def test_gradients_reach_every_parameter(case):
    model = redraw(case.model(depth=3, loops=2)).eval()
    for name, gradient in kit.gradients(model, kit.run(model)[1]).items():
        assert (gradient != 0).any(), name
        assert not name.startswith("schedules.") or (gradient != 0).all(), name


@every_case
def test_in_one_segment_it_acts_there_alone(case):
    segments = [
        {"name": "plain", "pattern": ["dense"], "repeat": 2, "regulators": []},
        {"name": "acting", "pattern": ["dense"], "loops": 2, "regulators": [case.regulator]},
    ]
    raw = {**model_dict(), **case.surroundings, "segments": segments}
    model = redraw(Transformer(ModelConfig.model_validate(raw))).eval()
    assert account(model.config, 9).stored == sum(p.numel() for p in model.parameters())
    gains = model.schedules(model.plan)
    for gain in (gains.read, gains.write, gains.skip):
        assert gain is None or (gain.shape[:2] == (4, 2) and (gain[:2] == 1).all())
    assert (gains.embed, gains.final, gains.logits) == (None, None, None)
    outside = {i.role for i in model.named_roles() if i.layer in (0, 1) and any(r != 1 for r in i.rule)}
    assert not outside
    learned = kit.gradients(model, kit.run(model)[1])
    assert all((g != 0).all() for name, g in learned.items() if name.startswith("schedules."))
    assert torch.equal(kit.run(unroll(model))[0], kit.run(model)[0])


@pytest.mark.parametrize("placement", PLACEMENTS)
@every_kind
def test_every_placement_works_or_is_refused_with_the_reason(case, placement):
    raw = {**model_dict(depth=2, loops=2), **case.surroundings, "placement": placement}
    try:
        config = ModelConfig.model_validate({**raw, "regulators": [case.regulator]})
    except ValueError as error:
        assert f"regulators.{case.kind}" in str(error)
        assert "under" in str(error)
        assert placement != case.surroundings.get("placement", "pre")
    else:
        model = Transformer(config)
        hidden, loss = kit.run(model)
        kit.gradients(model, loss)
        assert torch.isfinite(hidden).all()


@every_kind
def test_bf16_branches_leave_the_stream_in_fp32(case):
    model, ids, states, branches = redraw(case.model(dim=32)), make_ids(), [], []
    for layer in model.layers:
        layer.mixer.branch.register_forward_hook(lambda *call: branches.append(call[-1][0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        output = model(
            ids, ids, step=torch.tensor(kit.STEP), observe=lambda visit, before, after: states.append(after)
        )
    output.loss.backward()
    assert {state.dtype for state in states} == {torch.float32}
    assert set(branches) == {torch.bfloat16}
    torch.testing.assert_close(output.loss, kit.run(model)[1], rtol=3e-2, atol=0)
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("depth", [12, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", kit.by_graph())
def test_many_layers_are_one_graph_in_training_and_evaluation(case, depth):
    model, counter, ids = case.model(depth=depth), CompileCounter(), make_ids(1, 4)
    model.compile_blocks(counter)
    model(ids, step=torch.tensor(kit.STEP))
    model.eval()(ids)
    assert counter.frame_count == 1


@every_kind
def test_activation_checkpointing_leaves_gradients_as_they_are(case):
    kit.check_checkpointing(case)


@every_case
def test_state_dict_round_trip(case):
    model, other = redraw(case.model(depth=3)), case.model(depth=3, seed=9)
    other.load_state_dict(model.state_dict())
    assert torch.equal(kit.run(other)[0], kit.run(model)[0])


@every_kind
def test_it_acts_together_with_another_regulator(case):
    other = {"kind": "residual_scale", "scale": 0.5}
    both, alone = (case.model(depth=3, regulators=[case.regulator, *more]) for more in ([other], []))
    doubled, single = (m.eval().schedules(m.plan) for m in (both, alone))
    write = 1 if single.write is None else single.write
    torch.testing.assert_close(doubled.write, 0.5 * write * torch.ones_like(doubled.write))


@every_kind
@pytest.mark.parametrize(("depth", "steps"), [(8, 5), (32, 2)])
def test_deep_models_stay_finite(case, depth, steps):
    kit.check_training(case, depth, steps)


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize(("depth", "steps"), [(8, 20), (64, 20), (256, 2), (512, 2)])
def test_deeper_models_stay_finite(case, depth, steps):
    kit.check_training(case, depth, steps)
