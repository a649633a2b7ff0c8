import dataclasses

import pytest
import torch

from depthkit.data import Batch
from tests.models import redraw


def batch(rows, length=16, scored=None, seed=0):
    ids = torch.randint(0, 257, (rows, length + 1), generator=torch.Generator().manual_seed(seed))
    targets = ids[:, 1:].clone()
    if scored is not None:
        targets.flatten()[scored:] = -100
    return Batch(ids[:, :-1], targets, None, 0)


def gradients(trainer):
    return [parameter.grad for parameter in trainer.model.parameters()]


def test_accumulation_weighs_every_token_alike(make_trainer):
    parts = [batch(4, seed=1), batch(2, scored=5, seed=2), batch(3, scored=0, seed=3)]
    whole = Batch(
        torch.cat([part.ids for part in parts]), torch.cat([part.targets for part in parts]), None, 0
    )
    first, second = make_trainer(clip=None), make_trainer(clip=None)
    one, other = first.stepper.take(parts, 1), second.stepper.take([whole], 1)
    assert one.scored == other.scored == 4 * 16 + 5
    assert one.loss == pytest.approx(other.loss, rel=1e-6)
    for a, b in zip(gradients(first), gradients(second), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_gradients_are_clipped_and_the_norm_before_is_reported(make_trainer):
    free, clipped = make_trainer(clip=None), make_trainer(clip=0.25)
    norms = [trainer.stepper.take([batch(4)], 1).grad_norm for trainer in (free, clipped)]
    exact = torch.cat([g.double().flatten() for g in gradients(free)]).norm().item()
    assert norms == pytest.approx([exact, exact], rel=1e-5)
    assert exact > 0.25
    after = torch.cat([g.flatten() for g in gradients(clipped)]).norm().item()
    assert after == pytest.approx(0.25, rel=1e-4)


def test_the_objective_contains_the_auxiliary_loss(make_trainer):
    trainer = make_trainer(model={"head": {"z_loss": 0.1}})
    redraw(trainer.model)
    result = trainer.stepper.take([batch(4)], 1)
    assert result.objective > result.loss + 0.01


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_bad_step_changes_nothing(make_trainer, where):
    trainer = make_trainer()
    trainer.stepper.take([batch(4)], 1)
    if where == "loss":
        trainer.model.final_norm.weight.data[0] = float("inf")
    else:
        trainer.model.final_norm.weight.register_hook(lambda gradient: gradient * float("nan"))
    weights = [p.detach().clone() for p in trainer.model.parameters()]
    state = {p: {k: v.clone() for k, v in s.items()} for p, s in trainer.optimizer.state.items()}
    result = trainer.stepper.take([batch(4, seed=1)], 2)
    assert not result.finite
    for before, after in zip(weights, trainer.model.parameters(), strict=True):
        assert torch.equal(before, after)
    for parameter, fields in state.items():
        assert all(torch.equal(trainer.optimizer.state[parameter][k], v) for k, v in fields.items())


def test_bf16_leaves_weights_and_losses_in_fp32(make_trainer):
    exact, rounded = make_trainer(precision="fp32"), make_trainer(precision="bf16")
    results = [trainer.stepper.take([batch(4)], 1) for trainer in (exact, rounded)]
    assert results[0].loss != results[1].loss
    assert results[0].loss == pytest.approx(results[1].loss, rel=1e-2)
    assert {p.dtype for p in rounded.model.parameters()} == {torch.float32}


def test_result_is_bad_when_any_number_is(make_trainer):
    good = make_trainer().stepper.take([batch(4)], 1)
    assert good.finite
    for name in ("loss", "objective", "grad_norm"):
        assert not dataclasses.replace(good, **{name: float("nan")}).finite
        assert not dataclasses.replace(good, **{name: float("inf")}).finite
