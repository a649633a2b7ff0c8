"""Jacobians of visits against torch.func.jacrev, and where the peers' version says something else."""

import numpy as np
import pytest
import torch

from depthkit.utilization import evaluate
from depthkit.utilization.draws import rademacher, single_tokens
from depthkit.utilization.probes import jacobian
from tests.models import make_ids, make_model, redraw
from tests.utilization import models
from tests.utilization.models import DIM
from tests.utilization.test_probes import states

DISTANCE, TOKEN, TOP = (
    "jacobian_distance.rms",
    "jacobian_token_distance.rms",
    "jacobian_top_singular_value.mean",
)


def probe(**settings):
    return [{"kind": "jacobian"} | settings]


def exact(layer, h):
    """J - I of a layer around each sequence of h [N, T, D]: [N, TD, TD] from reverse-mode columns."""
    size = h[0].numel()
    found = [torch.func.jacrev(lambda x: layer(x[None])[0])(sequence) for sequence in h]
    return torch.stack([j.reshape(size, size) for j in found]).detach() - torch.eye(size)


def rms(matrices, size):
    return float((matrices.square().sum((1, 2)).mean() / size).sqrt())


@pytest.fixture
def every_direction(monkeypatch):
    """Instead of random signs, each direction once, so that the estimate is exact; only without pads."""

    def basis(seeds, mask, width, count):
        size = mask.shape[1] * width
        assert count == size
        return (
            (np.sqrt(size) * torch.eye(size))
            .view(size, 1, mask.shape[1], width)
            .expand(-1, len(mask), -1, -1)
        )

    monkeypatch.setattr(jacobian, "rademacher", basis)


@pytest.mark.usefixtures("every_direction")
def test_frobenius_norm_is_exact_over_all_directions():
    model, windows = models.mixing(2, seed=3), models.tokens(3, 4)
    report = evaluate(model, windows, probe(probes=4 * DIM, token_probes=0, iterations=0), batch_tokens=8)
    for visit, h in enumerate(states(model, windows)[:2]):
        j = exact(model.layers[visit], h)
        assert report.per_visit(DISTANCE)[visit] == pytest.approx(rms(j, 4 * DIM), rel=1e-5)
        # Changes of token 0 at the input are the first D columns.
        later = rms(j[:, :, DIM:], 3 * DIM)
        assert report.per_visit("jacobian_distance.rms_no_token0")[visit] == pytest.approx(later, rel=1e-5)
    assert TOKEN not in report.metrics
    assert TOP not in report.metrics


def test_random_signs_estimate_the_norms():
    model, windows = models.mixing(2, seed=3), models.tokens(4, 4)
    report = evaluate(model, windows, probe(probes=400, token_probes=400, iterations=60))
    for visit, h in enumerate(states(model, windows)[:2]):
        j = exact(model.layers[visit], h)
        assert report.per_visit(DISTANCE)[visit] == pytest.approx(rms(j, 4 * DIM), rel=0.03)
        blocks = torch.stack([j[:, t : t + DIM, t : t + DIM] for t in range(0, 4 * DIM, DIM)], 1).flatten(
            0, 1
        )
        assert report.per_visit(TOKEN)[visit] == pytest.approx(rms(blocks, DIM), rel=0.03)
        top = torch.linalg.matrix_norm(j, 2).mean()
        assert report.per_visit(TOP)[visit] == pytest.approx(float(top), rel=1e-3)


def test_of_a_transformer_block_with_fused_attention():
    model, windows = redraw(make_model(depth=2), std=0.4).eval(), make_ids(2, 6)
    report = evaluate(model, windows, probe(probes=300, iterations=80))
    found = []
    model(windows[:, :-1], observe=lambda visit, before, after: found.append(before.detach()))
    path = model.open(windows[:, :-1], model.schedules(model.plan, None, False, windows.device))
    assert torch.equal(path.state, found[0])
    for layer, (block, h) in enumerate(zip(model.layers, found, strict=True)):
        walk = block_of(model, windows[:, :-1], layer)
        whole = torch.autograd.functional.jacobian(lambda x, run=walk: run(x).sum(0), h)  # [T, D, N, T, D]
        j = torch.stack([whole[:, :, n].reshape(80, 80) for n in range(2)]) - torch.eye(80)
        assert report.per_visit(DISTANCE)[layer] == pytest.approx(rms(j, 80), rel=0.05)
        top = torch.linalg.matrix_norm(j, 2).mean()
        assert report.per_visit(TOP)[layer] == pytest.approx(float(top), rel=1e-2)
        assert block is model.layers[layer]


def block_of(model, ids, layer):
    from depthkit.model.walk import Inputs, Walk

    walk = Walk(model, model.plan, Inputs(ids))
    return lambda x: walk.visit(model.plan.visits[layer], x)[0]


def test_an_identity_is_at_distance_zero():
    report = evaluate(models.Model([models.Identity()]), models.tokens(), probe())
    assert all(report.per_visit(name) == [0.0] for name in report.metrics)
    assert len(report.metrics) == 5


@pytest.mark.parametrize("dim", [4, 32])
def test_a_linear_visit_has_the_norm_of_its_matrix_whatever_the_width(dim):
    turn = torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(0))).Q
    model = models.Model([models.Linear(torch.eye(dim) + 0.3 * turn)], dim=dim)
    report = evaluate(model, models.tokens(), probe(probes=1, token_probes=1))
    assert report.per_visit(DISTANCE) == pytest.approx([0.3], rel=1e-5)  # ||W||_F / sqrt(D)
    assert report.per_visit(TOKEN) == pytest.approx([0.3], rel=1e-5)
    assert report.per_visit(TOP) == pytest.approx([0.3], rel=1e-5)


def test_opposite_tokens_do_not_cancel():
    """The norm of the mean Jacobian, or of its sum over output positions, would be 0."""

    class Alternating(models.Linear):
        def forward(self, h):
            sign = 1 - 2 * (torch.arange(h.shape[1]) % 2)
            return h + sign[:, None] * (h @ self.matrix.T)

    model = models.Model([Alternating(0.5 * torch.eye(DIM))])
    report = evaluate(model, models.tokens(4, 12), probe())
    assert report.per_visit(DISTANCE) == pytest.approx([0.5], rel=1e-5)
    j = exact(model.layers[0], states(model, models.tokens(2, 4))[0]).view(2, 4, DIM, 4, DIM)
    assert float(j.sum(1).mean((0, 2)).norm()) < 1e-6


class Once(torch.autograd.Function):
    """Twice its input, with a derivative and no second one."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return 2 * grad


@pytest.mark.parametrize("residual", [0.0, 1.0])
def test_a_missing_second_derivative_costs_only_the_singular_value(residual):
    """Beside a residual torch says nothing: what it gives for J u is then the residual's part alone."""

    class Layer(models.Identity):
        def forward(self, h):
            return residual * h + Once.apply(h) if residual else Once.apply(h)

    report = evaluate(models.Model([Layer(), models.Mixing()]), models.tokens(), probe())
    assert report.per_visit(DISTANCE)[0] == pytest.approx(1.0 + residual)
    assert report.per_visit(TOP) == [None, None]
    (skipped,) = report.content["skipped"]
    assert skipped["metric"] == "jacobian_top_singular_value"
    assert "visit 0: no derivative" in skipped["reason"]


def test_an_error_of_the_model_is_not_hidden():
    class Failing(models.Mixing):
        def forward(self, h):
            if torch.is_grad_enabled():
                raise RuntimeError("shapes cannot be multiplied")
            return super().forward(h)

    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        evaluate(models.Model([Failing()]), models.tokens(), probe())


def test_short_number_types_have_no_distance():
    report = evaluate(models.mixing(2).to(torch.bfloat16), models.tokens(), probe())
    assert all(report.per_visit(name) == [None, None] for name in report.metrics)
    assert "bfloat16" in report.content["skipped"][0]["reason"]


def test_several_residual_streams_have_no_distance():
    report = evaluate(redraw(make_model(stream="mhc")), make_ids(4, 10), probe())
    assert report.per_visit(DISTANCE) == [None, None]
    assert "more than one residual" in report.content["skipped"][0]["reason"]


@pytest.mark.parametrize("backend", ["eager", "loop", "grouped"])
def test_experts_loops_and_eager_attention(backend):
    attention = {"backend": "eager"} if backend == "eager" else {}
    experts = {"kind": "moe", "num_experts": 4, "backend": "grouped" if backend == "eager" else backend}
    blocks = {"dense": {"mixer": {"kind": "gqa", "num_heads": 2, **attention}, "ffn": experts}}
    model = redraw(make_model(depth=1, loops=2, blocks=blocks))
    report = evaluate(model, make_ids(4, 10), probe())
    assert not report.content["skipped"]
    assert all(value > 0 for name in report.metrics for value in report.per_visit(name))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_cost_is_counted():
    report = evaluate(models.mixing(2), models.tokens(), probe(probes=3, token_probes=2, iterations=4))
    products = 1 + 2 * (3 + 2)
    power = 1 + 2 + 4 * (2 + 4) + 2
    assert report.content["timing"]["layer_evals"] == 2 + 2 * (products + power)


def test_signs_belong_to_their_sequence():
    mask = torch.ones(2, 5, dtype=torch.bool)
    padded = torch.cat([mask, ~mask[:, :2]], 1)
    first, again = rademacher([3, 4], mask, 6, 2), rademacher([4, 3], padded, 6, 2)
    assert torch.equal(first.flip(1), again[:, :, :5])
    assert set(first.unique().tolist()) == {-1.0, 1.0}
    assert not again[:, :, 5:].any()
    alone = single_tokens([3, 4], padded, 9)
    assert torch.equal(alone.sum(2), torch.ones(9, 2))
    assert not alone[:, :, 5:].any()
    assert torch.equal(single_tokens([4, 3], mask, 9).flip(1), alone[:, :, :5])
