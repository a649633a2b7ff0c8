"""The kit can fail: one gain or rule a hundredth off, and the checks of the equation see it."""

from dataclasses import fields, replace

import pytest

from depthkit.model.gains import Gains
from depthkit.model.registries import REGULATORS
from tests.model.regulators import kit
from tests.models import make_config

GAINS = [field.name for field in fields(Gains)]


def acting(case):
    """The gains a kind gives, and the multipliers it puts on some parameter."""
    model = case.model(depth=3, loops=2)
    gains = model.schedules(model.plan)
    rules = [info.rule for info in model.named_roles() if info.role != "schedule"]
    return [
        *(name for name in GAINS if getattr(gains, name) is not None),
        *(name for name in rules[0]._fields if any(getattr(rule, name) != 1 for rule in rules)),
    ]


MUTATIONS = [(case, name) for case in kit.defaults() for name in acting(case)]
FOLDED = kit.Case("lns", {"form": "folded", "index": "stored"})


def mutate(monkeypatch, kind, name, factor=1.01):
    """Multiply one gain, or one multiplier where it acts, by `factor`."""
    cls = REGULATORS.get(kind)
    gains, rule, norm_start = cls.gains, cls.rule, cls.norm_start

    def wrong_gains(self, *args):
        given = gains(self, *args)
        return replace(given, **{name: factor * getattr(given, name)})

    def wrong_rule(self, *args):
        given = rule(self, *args)
        return given if getattr(given, name) == 1 else given._replace(**{name: factor * getattr(given, name)})

    if name in GAINS:
        monkeypatch.setattr(cls, "gains", wrong_gains)
    elif name == "norm_start":
        monkeypatch.setattr(cls, name, lambda self, *args: factor * norm_start(self, *args))
    else:
        monkeypatch.setattr(cls, "rule", wrong_rule)


def check(case, name):
    if name in GAINS:
        kit.check_equation(case)
    else:
        kit.check_rules(case)


@pytest.mark.parametrize(("case", "name"), [*MUTATIONS, (FOLDED, "norm_start")], ids=lambda value: str(value))
def test_a_hundredth_more_is_seen(case, name, monkeypatch):
    check(case, name)
    mutate(monkeypatch, case.kind, name)
    with pytest.raises(AssertionError):
        check(case, name)


def test_every_kind_is_mutated_somewhere():
    assert {case.kind for case, _ in MUTATIONS} == set(REGULATORS.names())
    completep = {name for case, name in MUTATIONS if case.kind == "completep"}
    assert {"write", "logits", "eps"} <= completep


def test_a_mutated_regulator_is_no_longer_neutral(monkeypatch):
    case = kit.Case("residual_scale")
    kit.check_neutral(case)
    mutate(monkeypatch, case.kind, "write")
    assert make_config(regulators=["residual_scale"]).regulators[0].scale == 1
    with pytest.raises(AssertionError):
        kit.check_neutral(case)
