"""The experts probe on routers set by hand, and on the routers of Hugging Face families."""

import math

import numpy as np
import pytest
import torch

from depthkit.utilization import Sequences, Subject, evaluate
from depthkit.utilization.probes.experts import decidedness, summaries
from depthkit.utilization.routing import understood
from depthkit.utilization.sequences import IGNORED
from depthkit.utilization.structure.inside import Router
from tests.models import make_model, redraw
from tests.utilization.families import family
from tests.utilization.models import mixing, tokens
from tests.utilization.routed import EXPERTS, hand_set

LOADS = ("expert_load_entropy", "expert_load_cv", "expert_max_violation", "expert_dead")


def measured(model, sequences, **settings):
    return evaluate(model, sequences, [{"kind": "experts", **settings}], batch_tokens=16)


def test_loads_of_a_hand_set_router():
    """Token v goes to experts v and v + 1 (mod 4): loads, MaxVio and CV follow from the counts of tokens."""
    windows = torch.tensor([[0, 0, 0, 1, 0], [0, 2, 0, 0, 3]])
    report = measured(hand_set([[(v % 4, (v + 1) % 4) for v in range(EXPERTS)]]), windows)
    counts = np.zeros(EXPERTS)
    for v in windows[:, :-1].flatten().tolist():
        counts[[v % 4, (v + 1) % 4]] += 1
    loads = counts / counts.sum()
    np.testing.assert_allclose(report.arrays["expert_load.share"], loads[None])
    kept = loads[loads > 0]
    entropy = -(kept * np.log(kept)).sum() / math.log(EXPERTS)
    expected = (entropy, loads.std() / loads.mean(), EXPERTS * loads.max() - 1, 0.5)
    for name, value in zip(LOADS, expected, strict=True):
        assert report.per_visit(f"{name}.pooled") == [pytest.approx(value)]
        assert report.scalar(f"{name}.mean_over_visits") == pytest.approx(value)
        low, high = report.content["per_visit"][0]["ci95"][f"{name}.pooled"]
        assert low <= value <= high


@pytest.mark.parametrize("dead_below", [0.0, 1e-4, 0.2])
def test_dead_experts_are_counted(dead_below):
    """Three quarters of the choices go to experts 0 and 1, an eighth to 2 and to 3, none to the rest."""
    table = [[(0, 1), (0, 1), (0, 1), (2, 3), *[(0, 1)] * 4]]
    report = measured(hand_set(table), torch.tensor([[0, 1, 2, 3, 0]]), dead_below=dead_below)
    dead = {0.0: 0, 1e-4: EXPERTS - 4, 0.2: EXPERTS - 2}[dead_below]
    assert report.per_visit("expert_dead.pooled") == [dead / EXPERTS]


def test_imbalances_of_two_layers_do_not_cancel():
    """Layer 0 sends all to experts 0 and 1, layer 1 all to 2 and 3: together they would look more even."""
    report = measured(
        hand_set([[(0, 1)] * EXPERTS, [(2, 3)] * EXPERTS], depth=2), tokens(2, 6, vocab=EXPERTS)
    )
    assert report.per_visit("expert_max_violation.pooled") == pytest.approx([EXPERTS / 2 - 1] * 2)
    assert report.scalar("expert_max_violation.mean_over_visits") == pytest.approx(EXPERTS / 2 - 1)


def test_a_uniform_router_and_a_decided_one():
    shares = torch.tensor([[[0.25] * 4, [1.0, 0, 0, 0], [0.5, 0.25, 0.25, 0]]])
    entropy, margin = decidedness(shares)
    assert entropy.tolist()[0] == pytest.approx([math.log(4), 0, 1.5 * math.log(2)], abs=1e-6)
    assert margin.tolist()[0] == pytest.approx([0, 1, 0.25])
    assert decidedness(torch.ones(1, 1, 1))[1].tolist() == [[1.0]]


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_entropy_and_margin_are_the_models_own(score):
    model, windows = own_mixture(score=score), tokens(3, 8, vocab=97)
    report = measured(model, windows)
    with torch.no_grad():
        aux = model(windows[:, :-1]).aux
    for visit, entry in enumerate(aux):
        found = report.per_visit("router_entropy_nats.mean")[visit]
        assert found == pytest.approx(float(entry["entropy"]), rel=1e-5)
        loads = (entry["load"] / entry["load"].sum()).numpy()
        np.testing.assert_allclose(report.arrays["expert_load.share"][visit], loads, rtol=1e-6)
    assert report.content["timing"]["layer_evals"] == 4 + 4


def own_mixture(loops=2, **ffn):
    """One of depthkit's own, with routers of their own in every loop."""
    ffn = {"kind": "moe", "num_experts": 5, "router": "per_loop", "bias_rate": 0.01, **ffn}
    blocks = {"dense": {"mixer": {"kind": "gqa", "num_heads": 2}, "ffn": ffn}}
    return redraw(make_model(blocks=blocks, loops=loops, vocab=97), std=0.7).eval()


@pytest.mark.parametrize("name", ["own", "mixtral", "qwen3_moe", "deepseek_v3"])
def test_padding_and_order_do_not_matter(name):
    model, windows = own_mixture() if name == "own" else family(name), tokens(4, 9, vocab=97)
    ids, targets = windows[:, :-1], windows[:, 1:]
    pad = torch.zeros(4, 4, dtype=torch.int64)
    padded = Sequences.of_targets(torch.cat([ids, pad], 1), torch.cat([targets, pad + IGNORED], 1))
    plain = measured(model, windows)
    for other in (measured(model, padded), measured(model, windows.flip(0))):
        np.testing.assert_allclose(other.arrays["expert_load.share"], plain.arrays["expert_load.share"])
        for metric in plain.metrics:
            one, same = (np.array(report.per_visit(metric), float) for report in (plain, other))
            np.testing.assert_allclose(same, one, rtol=1e-5, err_msg=metric)


@pytest.mark.parametrize("name", ["mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_routers_of_families(name):
    """Loads counted from what reaches the experts; entropy by the family's own score function."""
    model, windows = family(name), tokens(3, 8, vocab=97)
    chosen, logits = {}, {}
    for index, layer in enumerate(model.model.layers):
        router = getattr(layer.mlp, "gate", getattr(layer.mlp, "router", None))
        if router is not None:
            layer.mlp.experts.register_forward_pre_hook(
                lambda _, args, i=index: chosen.update({i: next(a for a in args if a.dtype == torch.int64)})
            )
            router.register_forward_hook(lambda _, args, out, i=index: logits.update({i: out[0]}))
    with torch.no_grad():
        model(windows[:, :-1], use_cache=False)
    intact = dict(chosen), dict(logits)
    report = measured(model, windows)
    score = torch.sigmoid if name == "deepseek_v3" else lambda z: z.softmax(-1)
    for visit in range(6):
        if visit not in intact[0]:
            assert name == "deepseek_v3"
            assert np.isnan(report.arrays["expert_load.share"][visit]).all()
            assert report.per_visit("expert_dead.pooled")[visit] is None
            continue
        counts = torch.bincount(intact[0][visit].flatten(), minlength=8).numpy()
        np.testing.assert_allclose(report.arrays["expert_load.share"][visit], counts / counts.sum())
        shares = score(intact[1][visit].double())
        shares = shares / shares.sum(-1, keepdim=True)
        entropy = float(torch.special.entr(shares).sum(-1).mean())
        assert report.per_visit("router_entropy_nats.mean")[visit] == pytest.approx(entropy, rel=1e-4)
        best = shares.topk(2).values
        margin = float((best[:, 0] - best[:, 1]).mean())
        assert report.per_visit("router_margin.mean")[visit] == pytest.approx(margin, rel=1e-4)
    assert not report.content["skipped"]


@pytest.mark.parametrize(
    "build", [lambda: family("llama"), lambda: make_model(vocab=97)], ids=["llama", "own"]
)
def test_dense_models_say_so(build):
    report = measured(build(), tokens(vocab=97))
    assert report.content["skipped"] == [
        {"metric": "experts", "reason": "no layer of this model has experts"}
    ]
    assert not report.metrics


def test_a_model_whose_layers_are_not_looked_into_says_so():
    assert "read_out" in measured(mixing(2), tokens()).content["skipped"][0]["reason"]


def test_an_unknown_router_is_null_with_a_reason_never_zero():
    subject = Subject(family("mixtral"))
    inside = subject.structure.inside
    inside[2] = type(inside[2])(inside[2].branches, inside[2].reason, None)
    report = measured(subject, tokens(vocab=97))
    assert report.content["skipped"][0]["reason"].startswith(
        "1 visits, such as 2: the layer seems to have experts"
    )
    assert report.per_visit("expert_load_entropy.pooled")[2] is None
    assert np.isnan(report.arrays["expert_load.share"][2]).all()
    assert report.per_visit("expert_load_entropy.pooled")[1] is not None


class TestWhatARouterReturns:
    """Older versions return less, or in another order."""

    mask, router = torch.ones(2, 3, dtype=torch.bool), Router("gate", 4, 2)
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))

    def test_logits_alone(self):
        found = understood([self.logits], self.mask, self.router, top_k=2)
        assert torch.equal(found.experts.view(6, 2), self.logits.topk(2).indices)
        torch.testing.assert_close(found.shares.view(6, 4), self.logits.softmax(-1))

    def test_indices_before_weights_without_logits(self):
        weights, indices = self.logits.topk(2)
        found = understood([indices.int(), weights], self.mask, self.router, None)
        assert torch.equal(found.experts.view(6, 2), indices)
        assert found.shares is None

    def test_scattered_weights_are_no_logits(self):
        weights, indices = self.logits.topk(2)
        scattered = torch.zeros(6, 4).scatter(1, indices, weights.softmax(-1))
        assert understood([scattered, indices], self.mask, self.router, None).shares is None

    def test_neither_is_a_reason(self):
        assert "neither" in understood([torch.randn(6, 3)], self.mask, self.router, 2)
        assert "neither" in understood([self.logits], self.mask, self.router, None)


def test_no_choices_no_summary():
    for _, summary in summaries(1e-4).values():
        assert np.isnan(summary(np.zeros(4)))


def test_one_expert():
    report = measured(hand_set([[(0,)] * 3], experts=1), tokens(vocab=3))
    assert report.per_visit("expert_load_entropy.pooled") == [None]
    assert report.per_visit("expert_max_violation.pooled") == [0.0]
