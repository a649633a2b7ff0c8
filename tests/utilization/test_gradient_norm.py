"""Gradients against a plain backward through the model's own forward."""

import copy

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from depthkit.utilization import Sequences, evaluate
from tests.models import make_ids, make_model, redraw
from tests.utilization import models
from tests.utilization.families import family
from tests.utilization.test_planned import build

LAYER, RELATIVE, STATE = "gradient_norm.layer", "gradient_norm_relative.layer", "state_gradient.mean"


def norm(tensors):
    return float(torch.cat([t.detach().flatten() for t in tensors]).double().norm())


def check_layers(report, model, layers, loss):
    model.zero_grad()
    loss.backward()
    for found, relative, layer in zip(
        report.per_visit(LAYER), report.per_visit(RELATIVE), layers, strict=True
    ):
        size = norm(p.grad for p in layer.parameters())
        assert found == pytest.approx(size, rel=1e-4)
        assert relative == pytest.approx(size / norm(layer.parameters()), rel=1e-4)


def test_against_a_backward_of_the_whole():
    model, windows = models.mixing(3), models.tokens()
    report = evaluate(model, windows, ["gradient_norm"], batch_tokens=24)
    model = copy.deepcopy(model)
    h = [model.embed(windows[:, :-1])]
    for layer in model.layers:
        h[-1].retain_grad()
        h.append(layer(h[-1]))
    h[-1].retain_grad()
    total = F.cross_entropy(model.read_out(h[-1]).flatten(0, 1), windows[:, 1:].flatten(), reduction="sum")
    check_layers(report, model, model.layers, total / windows[:, 1:].numel())
    sizes = [state.grad.norm(dim=-1) * windows[:, 1:].numel() for state in h]
    assert report.scalar("state_gradient_embed.mean") == pytest.approx(float(sizes[0].mean()), rel=1e-4)
    assert report.per_visit(STATE) == pytest.approx([float(s.mean()) for s in sizes[1:]], rel=1e-4)
    without = [float(s[:, 1:].mean()) for s in sizes[1:]]
    assert report.per_visit("state_gradient.mean_no_token0") == pytest.approx(without, rel=1e-4)


@pytest.mark.parametrize("settings", [{}, {"loops": 2}, {"stream": "hyper"}, {"placement": "sandwich"}])
def test_of_a_transformer_is_its_own_loss(settings):
    model, windows = redraw(make_model(depth=2, **settings)).eval(), make_ids(6, 12)
    report = evaluate(model, windows, ["gradient_norm"], batch_tokens=22)
    layers = [model.layers[visit.layer] for visit in model.plan.visits]
    ids, targets = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
    check_layers(report, model, layers, model(ids, targets=targets).loss)
    multiple = settings.get("stream") == "hyper"
    assert [row["metric"] for row in report.content["skipped"]] == ["state_gradient"] * multiple
    assert (report.per_visit(STATE)[0] is None) == multiple


@pytest.mark.parametrize("name", ["looped", "huginn", "hyper looped"])
def test_what_loops_do_between_visits_is_differentiated(name):
    model, windows = build(name), make_ids(6, 10, vocab=11)
    report = evaluate(model, windows, ["gradient_norm"])
    layers = [model.layers[visit.layer] for visit in model.plan.visits]
    check_layers(report, model, layers, model(windows[:, :-1], targets=windows[:, 1:]).loss)


def test_of_a_hugging_face_model_is_its_own_loss():
    model, windows = family("gemma2", num_hidden_layers=2), models.tokens(vocab=97)
    report = evaluate(model, windows, ["gradient_norm"], batch_tokens=24)
    logits = model(windows[:, :-1]).logits
    loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    check_layers(report, model, model.model.layers, loss)
    assert not report.content["skipped"]


def test_a_layer_that_writes_nothing_is_pulled_at_its_output_matrices():
    model, windows = redraw(make_model(depth=3)), make_ids(4, 10)
    outputs = [model.layers[1].mixer.branch.o.weight, model.layers[1].ffn.branch.down.weight]
    with torch.no_grad():
        for matrix in outputs:
            matrix.zero_()
    report = evaluate(model, windows, ["gradient_norm"])
    model(windows[:, :-1].contiguous(), targets=windows[:, 1:].contiguous()).loss.backward()
    assert report.per_visit(LAYER)[1] == pytest.approx(norm(matrix.grad for matrix in outputs), rel=1e-4) != 0


def test_nothing_is_left_behind():
    model = models.mixing(3).train()
    model.layers[1].inner.weight.requires_grad_(False)
    flags = [p.requires_grad for p in model.parameters()]
    before = copy.deepcopy(model.state_dict())
    report = evaluate(model, models.tokens(), ["gradient_norm"])
    assert [p.requires_grad for p in model.parameters()] == flags
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.training
    frozen = report.per_visit(LAYER)
    model.layers[1].inner.weight.requires_grad_(True)
    assert evaluate(model, models.tokens(), ["gradient_norm"]).per_visit(LAYER) == frozen


def test_more_of_the_same_text_changes_nothing():
    model, windows = models.mixing(3), models.tokens()
    once, twice = (evaluate(model, w, ["gradient_norm"]) for w in (windows, torch.cat([windows, windows])))
    for name in once.metrics:
        np.testing.assert_allclose(once.per_visit(name), twice.per_visit(name), rtol=1e-5)


def test_tokens_that_are_not_scored_pull_at_nothing():
    model, windows = models.mixing(2), models.tokens(3, 8)
    targets = windows[:, 1:].clone()
    targets[:, 4:] = -100
    ids = windows[:, :-1]
    whole = evaluate(
        model, Sequences(ids, targets, torch.ones_like(ids, dtype=torch.bool)), ["gradient_norm"]
    )
    short = evaluate(model, Sequences.of((ids[:, :4], targets[:, :4], ids[:, :4] >= 0)), ["gradient_norm"])
    assert whole.per_visit(LAYER) == pytest.approx(short.per_visit(LAYER), rel=1e-5)
    assert whole.per_visit(STATE) == pytest.approx([v / 2 for v in short.per_visit(STATE)], rel=1e-5)


def test_a_layer_without_parameters_has_no_norm():
    report = evaluate(models.Model([models.Mixing(), models.Scale(2.0)]), models.tokens(), ["gradient_norm"])
    assert report.per_visit(LAYER)[1] is None
    assert report.per_visit(RELATIVE)[1] is None
    assert report.per_visit(LAYER)[0] > 0


def test_cost_is_a_forward_and_a_backward():
    report = evaluate(models.mixing(4), models.tokens(), ["gradient_norm"], batch_tokens=24)
    assert report.content["timing"]["layer_evals"] == 4 + 3 * 4
