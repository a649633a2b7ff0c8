"""Effects of a visit on later tokens, later visits, predictions and routing, against forwards by hand."""

import numpy as np
import pytest
import torch

from depthkit.utilization import evaluate
from depthkit.utilization.probes.routing_change import changed
from tests.models import make_model, redraw
from tests.utilization import models
from tests.utilization.byhand import end, states

DEPTH = 4


@pytest.fixture(scope="module")
def model():
    return models.mixing(DEPTH, seed=2)


WINDOWS = models.tokens(5, 9)


@torch.no_grad()
def altered_writes(model, h, source, early):
    """Writes of the visits after `source` when `early` positions skip it."""
    state = model.layers[source](h[source]).clone()
    state[:, early] = h[source][:, early]
    for later in range(source + 1, DEPTH):
        after = model.layers[later](state)
        yield later, after - state
        state = after


def test_future_effect(model):
    report = evaluate(model, WINDOWS, [{"kind": "future_effect", "cuts": 3}], seed=1)
    cuts = sorted((torch.randperm(7, generator=torch.Generator().manual_seed(1))[:3] + 2).tolist())
    assert len(set(cuts)) == 3
    h = states(model, WINDOWS[:, :-1])
    change, size = np.zeros((2, DEPTH, DEPTH))
    largest = np.full((DEPTH, DEPTH), np.nan)
    for source in range(DEPTH):
        for cut in cuts:
            for later, write in altered_writes(model, h, source, slice(1, cut)):
                intact = (h[later + 1] - h[later])[:, cut:]
                moved = (write[:, cut:] - intact).norm(dim=-1)
                change[source, later] += moved.sum()
                size[source, later] += intact.norm(dim=-1).sum()
                ratio = float((moved / intact.norm(dim=-1)).max())
                largest[source, later] = np.fmax(largest[source, later], ratio)
    with np.errstate(invalid="ignore"):
        means = change / size
    found = {name: report.arrays[f"future_effect.{name}"] for name in ("ratio_of_means", "max_all_tokens")}
    np.testing.assert_allclose(found["ratio_of_means"], means, rtol=1e-4)
    np.testing.assert_allclose(found["max_all_tokens"], largest, rtol=1e-4)
    series = report.per_visit("future_effect.ratio_of_means")
    assert series[0] == pytest.approx(np.nanmean(means[0]), rel=1e-4)
    assert series[-1] is None
    low, high = report.interval("future_effect.ratio_of_means")
    assert low[0] < series[0] < high[0]


def test_what_works_on_each_token_alone_has_no_future():
    torch.manual_seed(0)
    scale = models.Model([models.Scale(2.0), models.Mixing(), models.Scale(0.5)])
    found = evaluate(scale, WINDOWS, ["future_effect"]).arrays["future_effect.max_all_tokens"]
    assert found[0, 1] > 0  # the mixing layer reads the early tokens
    assert found[1, 2] == 0.0  # its own early writes reach nobody


def test_short_windows_have_no_future():
    report = evaluate(models.mixing(2), models.tokens(3, 2), ["future_effect"])
    assert report.content["skipped"] == [
        {"metric": "future_effect", "reason": "needs windows of three tokens"}
    ]
    assert report.per_visit("future_effect.max_all_tokens") == [None, None]


def test_local_effect(model):
    report = evaluate(model, WINDOWS, ["local_effect"])
    h = states(model, WINDOWS[:, :-1])
    for source in range(DEPTH):
        for later in range(source + 1, DEPTH):
            state = h[later].clone()
            state[:, 1:] -= (h[source + 1] - h[source])[:, 1:]
            with torch.no_grad():
                write = model.layers[later](state) - state
            intact = h[later + 1] - h[later]
            change, size = ((t[:, 1:]).norm(dim=-1) for t in (write - intact, intact))
            found = (
                report.arrays[f"local_effect.{n}"][source, later]
                for n in ("ratio_of_means", "max_all_tokens")
            )
            expected = change.mean() / size.mean(), (change / size).max()
            assert tuple(found) == pytest.approx([float(e) for e in expected], rel=1e-4)
    assert np.isnan(report.arrays["local_effect.ratio_of_means"][np.tril_indices(DEPTH)]).all()
    assert report.content["timing"]["layer_evals"] == DEPTH + DEPTH * (DEPTH - 1) // 2


def test_local_effect_does_not_pass_through():
    """The last layer reads the first one's write, though all between would read it first."""
    torch.manual_seed(0)
    model = models.Model([models.Mixing(), models.Scale(2.0), models.Scale(3.0)])
    h = states(model, WINDOWS[:, :-1])
    write = (h[1] - h[0])[:, 1:].norm(dim=-1).mean()
    expected = 2 * write / (2 * h[2][:, 1:]).norm(dim=-1).mean()
    found = evaluate(model, WINDOWS, ["local_effect"]).arrays["local_effect.ratio_of_means"]
    assert found[0, 2] == pytest.approx(float(expected), rel=1e-4)


def test_output_effect(model):
    report = evaluate(model, WINDOWS, ["output_effect"])
    with torch.no_grad():
        p, *skipped = (
            model.read_out(end(model, WINDOWS[:, :-1], order)).double().softmax(-1)
            for order in ([0, 1, 2, 3], [1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2])
        )
    for visit, q in enumerate(skipped):
        distance, divergence = (p - q).norm(dim=-1), (p * (p / q).log()).sum(-1)
        expected = {
            "output_effect_l2.mean": distance.mean(),
            "output_effect_l2.mean_no_token0": distance[:, 1:].mean(),
            "output_effect_l2.max_all_tokens": distance.max(),
            "output_effect_kl_nats.mean": divergence.mean(),
        }
        for name, value in expected.items():
            assert report.per_visit(name)[visit] == pytest.approx(float(value), rel=1e-4)
    weights = np.array(report.per_visit("output_effect_l2.mean"))
    score = (weights * np.arange(4)).sum() / weights.sum()
    assert report.scalar("depth_score.output") == pytest.approx(score)


def test_output_effect_is_taken_where_the_head_reads():
    """A norm after the loops changes the stream once more."""
    segment = {"name": "core", "pattern": ["dense"], "loops": 3, "out_norm": True}
    looped = redraw(make_model(segments=[segment])).eval()
    windows = models.tokens(3, 6)
    report = evaluate(looped, windows, ["output_effect"])
    with torch.no_grad():
        p = looped.logits(looped(windows[:, :-1]).hidden).softmax(-1)
        q = looped.logits(looped(windows[:, :-1], loops=2).hidden).softmax(-1)
    expected = float((p - q).norm(dim=-1).mean())
    assert report.per_visit("output_effect_l2.mean")[2] == pytest.approx(expected, rel=1e-4)
    assert expected > 1e-3


def test_overlap_of_chosen_experts():
    intact = torch.tensor([[[0, 1], [2, 3], [4, 5]]])
    other = torch.tensor([[[1, 0], [3, 7], [6, 7]]])
    assert changed(intact, other).tolist() == [[0.0, 0.5, 1.0]]


def test_routing_change():
    ffn = {"kind": "moe", "num_experts": 6, "top_k": 2}
    mixer = {"kind": "gqa", "num_heads": 2}
    blocks = {"dense": {"mixer": mixer, "ffn": "swiglu"}, "sparse": {"mixer": mixer, "ffn": ffn}}
    segment = {"name": "trunk", "pattern": ["dense", "sparse", "sparse"]}
    model = redraw(make_model(blocks=blocks, segments=[segment]), std=0.5).eval()
    windows = models.tokens(4, 7)
    report = evaluate(model, windows, ["routing_change"])
    expected = np.full((3, 3), np.nan)
    intact = chosen(model, windows[:, :-1], None)
    for source in range(2):
        altered = chosen(model, windows[:, :-1], source)
        for later in range(max(1, source + 1), 3):
            pairs = zip(intact[later].flatten(0, 1), altered[later].flatten(0, 1), strict=True)
            kept = [len(set(a.tolist()) & set(b.tolist())) / 2 for a, b in pairs]
            expected[source, later] = 1 - np.mean(kept)
    for found in (report, evaluate(model, windows, ["routing_change"], batch_tokens=7)):
        np.testing.assert_allclose(found.arrays["routing_change.mean"], expected, rtol=1e-6)
    assert np.nanmax(expected) > 0.1
    series = report.per_visit("routing_change.mean")
    assert series == [pytest.approx(np.nanmean(expected[0])), pytest.approx(expected[1, 2]), None]


@torch.no_grad()
def chosen(model, ids, skipped):
    """Experts by layer when a hook makes the model skip one."""
    found = {}

    def hook(layer, args, output):
        index = list(model.layers).index(layer)
        found[index] = output[1].get("experts")
        return (args[0], output[1]) if index == skipped else output

    handles = [layer.register_forward_hook(hook) for layer in model.layers]
    model(ids)
    for handle in handles:
        handle.remove()
    return found


def test_routing_needs_experts(model):
    report = evaluate(model, WINDOWS, ["routing_change"])
    assert report.per_visit("routing_change.mean") == [None] * DEPTH
    assert report.content["skipped"][0]["reason"] == "no visit says which experts it chose"
    assert report.content["timing"]["layer_evals"] == DEPTH
