"""The regulator kit: what every registered kind is held to. A kind that is added is covered on arrival."""

from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from depthkit.model import Transformer
from depthkit.model.registries import REGULATORS
from tests.model.regulators import statements
from tests.model.regulators.written import written
from tests.models import make_config, make_ids, make_model, redraw

STEP = 3


class Case(NamedTuple):
    """A kind at some settings."""

    kind: str
    settings: dict[str, Any] = {}

    def __str__(self):
        return "-".join([self.kind, *(f"{key}={value}" for key, value in self.settings.items())])

    @property
    def regulator(self):
        """As it stands in a config."""
        return {"kind": self.kind, **self.settings}

    @property
    def surroundings(self):
        """Model settings the kind needs."""
        cls = REGULATORS.get(self.kind)
        placement = {"placement": cls.placements[0]} if cls.placements else {}
        return placement | ({"norm": "none"} if cls.needs_norm is False else {})

    def model(self, **kwargs):
        """A small model with the regulator."""
        return make_model(**{"regulators": [self.regulator], **self.surroundings, **kwargs})


def defaults():
    """Every registered kind as it is by default."""
    return [Case(name) for name in REGULATORS.names()]


def stated():
    """Every kind that has a statement, at its defaults and at the statement's variants."""
    names = [name for name in REGULATORS.names() if name in statements.NAMES]
    variants = {name: getattr(statements.of(name), "VARIANTS", []) for name in names}
    return [Case(name, settings) for name in names for settings in [{}, *variants[name]]]


@cache
def first_of_its_gains():
    """The kinds that give a model such gains as no kind before them: in shape, learned or not, and place."""
    found = {}
    for case in defaults():
        model = case.model(depth=1)
        gains = model.schedules(model.plan, training=True)
        looks = [(g.shape, g.requires_grad) if g is not None else None for g in vars(gains).values()]
        found.setdefault((*looks, *case.surroundings.values()), case.kind)
    return set(found.values())


def by_graph():
    """Every kind as a parameter, slow where an earlier one gives the compiler the same gains to look at."""
    return [_param(case, slow=case.kind not in first_of_its_gains()) for case in defaults()]


def with_partners(partners, every=4):
    """Every kind with every partner; where an earlier kind gives the same gains, one of `every` is not slow."""
    return [
        _param(case, partner, slow=case.kind not in first_of_its_gains() and (row + column) % every > 0)
        for row, case in enumerate(defaults())
        for column, partner in enumerate(partners)
    ]


def _param(*values, slow):
    return pytest.param(*values, marks=[pytest.mark.slow] if slow else [], id="-".join(map(str, values)))


def run(model, ids=None):
    """Hidden state and loss, at a fixed step so that random schedules repeat."""
    ids = make_ids() if ids is None else ids
    output = model(ids, ids, step=torch.tensor(STEP))
    return output.hidden, output.loss


def gradients(model, value):
    """Gradient of every parameter by name."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(value, parameters), strict=True))


def statement_at(model, visit, branch):
    """What a statement is told about one site of a model with one regulator and one segment."""
    regulator, segment = model.schedules.regulators[0], model.config.segments[0]
    layers = segment.repeat * len(segment.pattern)
    return statements.At(
        visit.index,
        visit.layer,
        branch,
        layers * segment.loops,
        layers,
        segment.loops,
        model.config.dim,
        regulator.config,
        {name: parameter.double() for name, parameter in regulator.named_parameters()},
        model.training,
        STEP,
    )


def check_equation(case):
    """Output and all gradients equal the written-out model with the statement's gains."""
    statement, ids = statements.of(case.kind), make_ids()
    for training in (True, False):
        model = redraw(case.model(depth=3, loops=2)).train(training)
        hidden, _ = run(model, ids)
        outer = getattr(statement, "outer", lambda at: {})(statement_at(model, model.plan.visits[0], 0))
        expected = written(
            model, ids, lambda visit, branch, m=model: statement.site(statement_at(m, visit, branch)), outer
        )
        torch.testing.assert_close(hidden.double(), expected, rtol=1e-4, atol=1e-5)
        weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(5))
        actual = _reached(model, (hidden * weights).sum())
        for name, gradient in _reached(model, (expected * weights).sum()).items():
            scale = gradient.abs().max().item()
            torch.testing.assert_close(actual[name], gradient, rtol=1e-3, atol=1e-5 * scale + 1e-7, msg=name)


def _reached(model, value):
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(value, parameters, allow_unused=True)
    return {name: g for name, g in zip(names, found, strict=True) if g is not None}


def check_rules(case):
    """Initial values and optimiser multipliers are the plain model's times what the statement says."""
    statement = statements.of(case.kind)
    regulated, plain = case.model(depth=3, loops=2), make_model(depth=3, loops=2, **case.surroundings)
    start, initial = dict(plain.named_parameters()), dict(regulated.named_parameters())
    first = {visit.layer: visit for visit in reversed(regulated.plan.visits)}
    for info in regulated.named_roles():
        factors = [1.0, 1.0, 1.0, 1.0]
        if info.layer is not None:
            at = statement_at(regulated, first[info.layer], ("mixer", "ffn").index(info.branch))
            factors = list(getattr(statement, "rule", lambda at, role: (1, 1, 1, 1))(at, info.role))
            if ".before." in info.name and info.role == "norm":
                factors[0] *= getattr(statement, "norm_start", lambda at: 1)(at)
        if info.name in start:
            torch.testing.assert_close(initial[info.name], start[info.name] * factors[0], rtol=1e-6, atol=0)
        if info.role != "schedule":
            assert tuple(info.rule) == pytest.approx(factors, rel=1e-6), info.name


def check_neutral(case):
    """At the settings the class calls neutral, output and gradients equal no regulator bit for bit."""
    shape = {"depth": 4, "loops": 2, "final_norm": True, **case.surroundings}
    plain, neutral = make_model(**shape), case.model(**shape)
    expected, actual = run(plain), run(neutral)
    assert torch.equal(actual[0], expected[0])
    assert torch.equal(actual[1], expected[1])
    regulated = gradients(neutral, actual[1])
    common = {name: g for name, g in gradients(plain, expected[1]).items() if name in regulated}
    assert len(common) >= len(regulated) - len(list(neutral.schedules.parameters()))
    for name, gradient in common.items():
        assert torch.equal(regulated[name], gradient), name


def check_meta(case):
    """Built on the meta device and then filled, a model equals one built directly."""
    config = make_config(depth=3, loops=2, regulators=[case.regulator], **case.surroundings)
    direct = Transformer(config, seed=3)
    with torch.device("meta"):
        model = Transformer(config, seed=3)
    model = model.to_empty(device="cpu")
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.detach().fill_(torch.nan)
    model.reset_parameters(3)
    assert model.state_dict().keys() == direct.state_dict().keys()
    for name, value in direct.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    assert torch.equal(run(model)[0], run(direct)[0])


def check_checkpointing(case):
    """Recomputing the blocks in the backward changes no gradient."""
    plain, checkpointed = (redraw(case.model(depth=3, loops=2)) for _ in range(2))
    for layer in checkpointed.layers:
        layer.forward = _recomputed(layer.forward)
    expected = gradients(plain, run(plain)[1])
    for name, gradient in gradients(checkpointed, run(checkpointed)[1]).items():
        assert torch.equal(gradient, expected[name]), name


def _recomputed(forward):
    return lambda *args: checkpoint(forward, *args, use_reentrant=False)


def check_training(case, depth, steps):
    """Some steps of AdamW from the initialisation stay finite."""
    model = case.model(depth=depth)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    for step in range(steps):
        ids = make_ids(1, 8, seed=step)
        loss = model(ids, ids, step=torch.tensor(step)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert torch.isfinite(loss)
    assert all(torch.isfinite(p).all() for p in model.parameters())
