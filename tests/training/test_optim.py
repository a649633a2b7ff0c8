import pytest
import torch

from depthkit.model.roles import MATRICES, Rule
from depthkit.training import optim


def update(trainer, lr=None):
    """One optimiser step on gradients that are easy to state: all of them 0.5."""
    if lr is not None:
        optim.set_lr(trainer.optimizer, lr)
    for parameter in trainer.model.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    trainer.optimizer.step()


def test_only_matrices_decay(make_trainer):
    model = make_trainer().model
    decays = {
        id(parameter): group["decay_multiplier"]
        for group in optim.parameter_groups(model)
        for parameter in group["params"]
    }
    for info in model.named_roles():
        assert decays[id(info.parameter)] == (1.0 if info.role in MATRICES else 0.0), info.name
    assert len(decays) == len(list(model.parameters()))


def test_a_tied_matrix_is_trained_once_and_frozen_ones_not_at_all(make_trainer):
    model = make_trainer(model={"head": {"tied": True}}).model
    next(model.layers.parameters()).requires_grad_(False)
    held = [id(p) for group in optim.parameter_groups(model) for p in group["params"]]
    assert len(held) == len(set(held)) == len(list(model.parameters())) - 1


def test_one_step_is_adamw_with_the_rules_multipliers(make_trainer, monkeypatch):
    rules = {"q": Rule(lr=0.5, eps=1e6, weight_decay=3.0)}
    monkeypatch.setattr(
        "depthkit.model.schedules.Schedules.rule",
        lambda self, plan, layer, branch, role: rules.get(role, Rule()),
    )
    trainer = make_trainer()
    before = {name: p.detach().double().clone() for name, p in trainer.model.named_parameters()}
    update(trainer, lr=0.1)
    for info in trainer.model.named_roles():
        rule = info.rule
        # First step: both bias-corrected moments are the gradient itself and its square.
        direction = 0.5 / (0.5 + 1e-8 * rule.eps)
        decay = 0.1 * rule.weight_decay if info.role in MATRICES else 0.0
        lr = 0.1 * rule.lr
        expected = before[info.name] * (1 - lr * decay) - lr * direction
        torch.testing.assert_close(info.parameter.detach().double(), expected, rtol=1e-5, atol=1e-7)


def test_state_comes_back_as_it_was(make_trainer):
    first, second = make_trainer(), make_trainer()
    for _ in range(3):
        update(first)
    second.model.load_state_dict(first.model.state_dict())
    state = {name: value.clone() for name, value in optim.state_tensors(first.optimizer, first.model).items()}
    assert {name.rpartition("/")[2] for name in state} == {"exp_avg", "exp_avg_sq", "step"}
    optim.load_state_tensors(second.optimizer, second.model, state)
    update(first)
    update(second)
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_state_of_another_model_is_refused(make_trainer):
    trainer = make_trainer()
    with pytest.raises(ValueError, match=r"optimiser state of 'layers\.9\.x'"):
        optim.load_state_tensors(trainer.optimizer, trainer.model, {"layers.9.x/exp_avg": torch.zeros(1)})
