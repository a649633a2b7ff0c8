"""Every policy between loops against a recurrence written out by hand, with all gradients."""

import pytest
import torch

from depthkit.model.loops.registries import CARRIES, INJECTS, READOUTS, STATES
from depthkit.model.loops.states import Noise
from tests.model.loops.written import LOOPS, ids_for, leaves, looped, once, probe, whole
from tests.model.streams.written import assert_equal_with_gradients
from tests.models import make_model, redraw


def inject(mix, from_start=False):
    def core(e, step, p):
        h = e
        for t in range(LOOPS):
            h = step(mix(h, e, p, t) if t or from_start else h)
        return h

    return core


def unit(x):
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def carry(mix):
    def core(e, step, p):
        y = [step(e)]
        for t in range(1, LOOPS):
            y.append(step(y[-1] + p["carry.strength"][t - 1] * unit(mix(y, p))))
        return y[-1]

    return core


def half_life(y, p):
    mean = y[0]
    for output in y[1:]:
        mean = 0.3 * mean + 0.7 * output
    return mean


def by_weights(y, p):
    logits = p["carry.logits"]
    return y[0] if len(y) == 1 else sum(w * x for w, x in zip(logits[1:3].softmax(0), y, strict=True))


def weighted(e, step, p):
    y = [step(e)]
    for _ in range(LOOPS - 1):
        y.append(step(y[-1]))
    a = p["readout.logits"]
    exps = [a[0].exp(), a[1].exp(), (a[2] + 1.5).exp()]
    return sum(w / sum(exps) * x for w, x in zip(exps, y, strict=True))


def everything(e, step, p):
    lam, y = p["inject.strength"], []
    h = torch.zeros_like(e)
    for t in range(LOOPS):
        x = (h + lam[t] * e) / (1 + lam[t])
        x = x + p["carry.strength"][t - 1] * unit(sum(y) / t) if t else x
        h = step(x + p["embedding"][t])
        y.append(h)
    a = p["readout.logits"]
    exps = [a[0].exp(), a[1].exp(), (a[2] + 4).exp()]
    return sum(w / sum(exps) * x for w, x in zip(exps, y, strict=True))


def embeddings(e, step, p):
    for row in p["embedding"]:
        e = step(e + row)
    return e


CASES = {
    "add": ({"inject": "add"}, inject(lambda h, e, p, t: h + p["inject.strength"][t] * e)),
    "convex": (
        {"inject": "convex"},
        inject(lambda h, e, p, t: (h + p["inject.strength"][t] * e) / (1 + p["inject.strength"][t])),
    ),
    "gate": (
        {"inject": "gate"},
        inject(lambda h, e, p, t: e + (h - e) / (1 + (-p["inject.gate"][t]).exp())),
    ),
    "linear": (
        {"inject": "linear"},
        inject(lambda h, e, p, t: torch.cat([h, e], -1) @ p["inject.adapter.weight"].T, from_start=True),
    ),
    "linear from the identity": (
        {"inject": {"kind": "linear", "identity": True}},
        inject(
            lambda h, e, p, t: (
                h + h @ p["inject.adapter.weight"][:, :8].T + e @ p["inject.adapter.weight"][:, 8:].T
            ),
            from_start=True,
        ),
    ),
    "mean": ({"carry": "mean"}, carry(lambda y, p: sum(y) / len(y))),
    "ema": ({"carry": {"kind": "ema", "decay": 0.3}}, carry(half_life)),
    "learned": ({"carry": "learned"}, carry(by_weights)),
    "weighted": ({"readout": {"kind": "weighted", "bias": 1.5}}, weighted),
    "embedding": ({"loop_embedding": True}, embeddings),
    "everything": (
        {
            "inject": "convex",
            "state_init": "zero",
            "carry": "mean",
            "readout": "weighted",
            "loop_embedding": True,
        },
        everything,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_its_equation(name):
    settings, core = CASES[name]
    assert_equal_with_gradients(looped(settings, std=0.2), lambda model, ids: whole(model, ids, core))


def test_every_kind_is_tested_and_documented():
    used = [dict(s) for s, _ in CASES.values()]
    for key, registry in {"inject": INJECTS, "carry": CARRIES, "readout": READOUTS}.items():
        kinds = {v if isinstance(v, str) else v["kind"] for s in used if (v := s.get(key))}
        assert kinds | {"none", "last"} >= set(registry.names())
    for registry in (INJECTS, CARRIES, READOUTS, STATES):
        assert all(registry.get(name).equation for name in registry.names())


@pytest.mark.parametrize("kind", ["add", "convex", "gate", "linear"])
def test_a_random_state_is_injected_into_from_the_first_loop_on(kind):
    core = {"inject": kind, "state_init": "normal"}
    model = looped(core)
    policies = model.recurrences["core"]

    def by_hand(model, ids):
        def body(e, step, p):
            h = policies.state_init(e, Noise())
            for t in range(LOOPS):
                h = step(policies.inject(h, e, t))
            return h

        return whole(model, ids, body)

    assert_equal_with_gradients(model, by_hand)
    if kind in {"add", "convex"}:
        gradient = leaves(model, probe(model(ids_for(model)).hidden))["recurrences.core.inject.strength"]
        assert (gradient != 0).all()


@pytest.mark.parametrize("kind", ["add", "convex", "gate"])
def test_one_loop_from_the_embedding_is_the_plain_stack(kind):
    model = looped({"inject": kind, "carry": "mean"})
    ids = ids_for(model)
    plain = whole(model, ids, lambda e, step, p: step(e))
    torch.testing.assert_close(model(ids, loops=1).hidden, plain, rtol=1e-12, atol=0)
    assert (model(ids, loops=2).hidden - plain).abs().max() > 1e-3


def test_strengths_start_as_they_say():
    fresh = lambda core, loops=4: make_model(  # noqa: E731
        segments=[{"name": "core", "pattern": ["dense"], "loops": loops, **core}]
    ).recurrences["core"]
    assert fresh({"inject": "add"}).inject.strength.tolist() == [0.25] * 4
    sampled = {"kind": "uniform", "max": 7}
    assert fresh({"inject": "convex"}, sampled).inject.strength.tolist() == [0.25] * 7
    assert fresh({"inject": {"kind": "add", "start": 0.5}}).inject.strength.tolist() == [0.5] * 4
    assert fresh({"inject": "gate"}).inject.gate.tolist() == [2.0] * 4
    assert fresh({"carry": "mean"}).carry.strength.tolist() == pytest.approx([0.1] * 3)
    assert fresh({"carry": "learned"}).carry.logits.tolist() == [0.0] * 6
    assert fresh({"readout": "weighted"}).readout.logits.tolist() == [0.0] * 4
    assert (fresh({"loop_embedding": True}).embedding == 0).all()
    assert (fresh({"inject": {"kind": "linear", "identity": True}}).inject.adapter.weight == 0).all()
    wide = fresh({"inject": "linear"}).inject.adapter.weight  # fan-in 2D
    assert wide.std().item() == pytest.approx(0.64 / 32**0.5, rel=0.15)


def test_the_first_output_is_carried_whatever_the_mix():
    """With one earlier output every carry is that output, normalised."""
    outputs = {kind: looped({"carry": kind}, loops=2) for kind in ("mean", "ema", "learned")}
    ids = ids_for(outputs["mean"])
    for model in outputs.values():
        expected = whole(model, ids, lambda e, step, p: step((y := step(e)) + p["carry.strength"] * unit(y)))
        torch.testing.assert_close(model(ids).hidden, expected)


@pytest.mark.parametrize("setting", [True, "final", {"kind": "layer", "bias": False}], ids=str)
def test_out_norm_normalises_what_is_handed_on(setting):
    settings = {"out_norm": setting, "inject": "linear"}
    model = redraw(
        make_model(segments=[{"name": "core", "pattern": ["dense"], "loops": 2, **settings}], norm="rms")
    )
    ids, seen = ids_for(model), []
    hidden = model(ids, observe=lambda visit, before, after: seen.append(after)).hidden
    own = dict(model.recurrences["core"].named_parameters()).get("out_norm.weight")
    assert (own is None) == (setting == "final")
    weight = model.final_norm.weight if own is None else own
    x = seen[-1] - seen[-1].mean(-1, keepdim=True) if isinstance(setting, dict) else seen[-1]
    handed = weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    final = model.final_norm.weight * unit(handed)
    torch.testing.assert_close(hidden, final, rtol=1e-4, atol=1e-5)


def test_huginn_uses_its_final_norm_twice_and_both_uses_train_it():
    core = {"inject": "linear", "state_init": "normal", "out_norm": "final", "placement": "huginn"}
    model = redraw(
        make_model(
            segments=[
                {"name": "prelude", "pattern": ["dense"], "placement": "huginn"},
                {"name": "core", "pattern": ["dense"], "loops": 2, **core},
                {"name": "coda", "pattern": ["dense"], "norm": "none", "placement": "pre"},
            ]
        )
    )
    ids, seen = ids_for(model), {}
    hidden = model(ids, observe=lambda visit, before, after: seen.update({visit.key: (before, after)})).hidden
    (begin, first), (again, second), (into_coda, _) = list(seen.values())[1:]
    entry, adapter = seen[model.plan.visits[0].key][1], model.recurrences["core"].inject.adapter
    state = model.recurrences["core"].state_init(entry, Noise())
    torch.testing.assert_close(begin, adapter(torch.cat([state, entry], -1)))
    torch.testing.assert_close(again, adapter(torch.cat([first, entry], -1)))
    weight = model.final_norm.weight
    torch.testing.assert_close(into_coda, weight * unit(second), rtol=1e-4, atol=1e-5)
    expected = weight * unit(once(model, ids, "coda", weight * unit(second)))
    torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-5)
    actual, by_hand = (
        torch.autograd.grad(probe(x), weight, retain_graph=True)[0] for x in (hidden, expected)
    )
    torch.testing.assert_close(actual, by_hand, rtol=1e-3, atol=1e-4)
    assert [name for name, _ in model.named_parameters() if "final_norm" in name or "out_norm" in name] == [
        "final_norm.weight"
    ]


def test_past_the_trained_loops_a_learned_carry_mixes_the_latest_outputs():
    model = looped({"carry": "learned"}, std=0.2)
    weights = model.recurrences["core"].carry.logits[1:3].softmax(0)

    def core(e, step, p):
        y = [step(e)]
        for t in range(1, 5):
            mix = y[0] if t == 1 else weights[0] * y[-2] + weights[1] * y[-1]
            y.append(step(y[-1] + p["carry.strength"][min(t, 2) - 1] * unit(mix)))
        return y[-1]

    ids = ids_for(model)
    with pytest.warns(UserWarning, match="never trained past 3 loops"):
        actual = model(ids, loops=5).hidden
    torch.testing.assert_close(actual, whole(model, ids, core))
