"""The engine: bitwise what a hooked full forward computes, at the promised cost, and nothing left behind."""

import pytest
import torch
from torch import nn

from depthkit.utilization import Sequences, Subject, evaluate
from depthkit.utilization.canaries import CanaryError, check
from depthkit.utilization.capture import capturing, skipping, state_of
from depthkit.utilization.edits import skip
from depthkit.utilization.replay import Engine, replay, sweep_cost
from depthkit.utilization.subject import find_layers
from tests.utilization import models

KINDS = {
    "tensor": lambda: models.mixing(4),
    "tuple": lambda: models.mixing(4, models.TupleOut),
    "keyword": lambda: models.mixing(4, models.Keyword),
    "shared": lambda: models.mixing(2, order=[0, 1, 0, 1, 1]),
}


def every_skip(traces):
    return [skip(visit) for visit in range(traces[0].depth)]


def engine(model: nn.Module, batch_tokens: int = 1024, count: int = 6) -> Engine:
    return Engine(Subject(model), Sequences.of(models.tokens(count)), batch_tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_replayed_skip_is_bitwise_a_hooked_forward(kind):
    subject = Subject(KINDS[kind]())
    run = Engine(subject, Sequences.of(models.tokens()))
    with subject.frozen():
        (trace,) = run.record()
        for visit in range(trace.depth):
            with skipping(subject.layers, visit) as seen:
                subject.run(trace.batch.ids)
            assert torch.equal(replay(trace, skip(visit)), seen.after[-1])
            assert visit == trace.depth - 1 or not torch.equal(seen.after[-1], trace.states[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_sweep_ends_where_single_skips_end(kind):
    run = engine(KINDS[kind](), batch_tokens=24)
    with run.subject.frozen():
        traces = run.record()
        last = traces[0].depth - 1
        for step in run.sweep(traces, every_skip(traces)):
            if step.visit == last:
                assert torch.equal(step.after, replay(step.trace, step.edit))
            assert (step.scores is not None) == (step.visit == last)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_cost_is_counted_and_is_what_really_ran(depth):
    model = models.mixing(depth)
    run = engine(model, batch_tokens=24)
    calls = []
    for layer in model.layers:
        layer.register_forward_hook(lambda *_: calls.append(1))
    with run.subject.frozen():
        traces = run.record()
        list(run.sweep(traces, every_skip(traces)))
    assert run.layer_evals == depth * (depth + 1) // 2 == sweep_cost(depth, every_skip(traces))
    assert len(calls) == len(traces) * depth * (depth + 1) // 2
    assert len(traces) == 3


def test_report_carries_the_cost():
    report = evaluate(models.mixing(6), models.tokens(), ["ablation"])
    assert report.content["timing"]["layer_evals"] == 21
    assert evaluate(models.mixing(6), models.tokens(), ["stream"]).content["timing"]["layer_evals"] == 6


def test_sweep_is_visit_major():
    run = engine(models.mixing(4), batch_tokens=24)
    order = []
    with run.subject.frozen():
        traces = run.record()
        for layer in run.subject.layers:
            layer.register_forward_hook(lambda module, *_: order.append(run.subject.layers.index(module)))
        list(run.sweep(traces, every_skip(traces)))
    assert order == sorted(order)


def test_progress_adds_up_to_the_cost():
    seen = []
    evaluate(
        models.mixing(4), models.tokens(), ["ablation"], batch_tokens=24, progress=lambda *a: seen.append(a)
    )
    assert seen[-1] == pytest.approx((10, 10))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_states_are_raw_residual_states():
    model = models.mixing(3)
    run = engine(model)
    with run.subject.frozen():
        (trace,) = run.record()
        h = model.embed(trace.batch.ids)
        assert torch.equal(trace.states[0], h)
        for index, layer in enumerate(model.layers):
            h = layer(h)
            assert torch.equal(trace.states[index + 1], h)
        # The last state is taken before the final norm, which would change it.
        assert not torch.allclose(trace.states[-1], model.norm(h))


def test_tensor_output_is_not_indexed():
    h = torch.randn(2, 3, 4)
    assert state_of(h) is h
    assert state_of((h, None)) is h
    with pytest.raises(ValueError, match="residual state"):
        state_of({"h": h})


def test_model_is_left_as_it_was():
    model = models.mixing(3)
    model.train()
    model.layers[1].eval()
    flags = [module.training for module in model.modules()]
    evaluate(model, models.tokens())
    assert [module.training for module in model.modules()] == flags
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    loss = model(models.tokens()[:, :-1]).square().mean()
    loss.backward()
    assert model.embed.weight.grad is not None


def test_model_is_left_as_it_was_after_an_error():
    model = models.Model([models.Mixing(), models.InPlace()]).train()
    with pytest.raises(ValueError, match="visit 1 writes into its own input"):
        evaluate(model, models.tokens())
    assert model.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_dropout_is_off():
    torch.manual_seed(0)
    model = models.Model([models.Mixing(dropout=0.5) for _ in range(3)]).train()
    first, second = (evaluate(model, models.tokens(), ["ablation"]) for _ in range(2))
    assert first.content["per_visit"] == second.content["per_visit"]


def test_a_changed_stream_between_visits_is_refused():
    class Injecting(models.Model):
        def visit(self, layer, h):
            return super().visit(layer, h) + 0.1

    with pytest.raises(ValueError, match="visit 1 reads is not the state that visit 0 returned"):
        evaluate(Injecting([models.Mixing(), models.Mixing()]), models.tokens())


def test_states_that_are_not_finite_are_refused_with_the_visit():
    model = models.Model([models.Mixing(), models.Scale(float("inf")), models.Mixing()])
    with pytest.raises(ValueError, match="after visit 1 is not finite"):
        evaluate(model, models.tokens())


def test_arguments_that_depend_on_the_state_fail_a_canary():
    """An identity replay would pass: only a skip shows that the recorded argument is stale."""

    class Gated(models.Mixing):
        def forward(self, h, scale):
            return h + scale * super().forward(h)

    class Feeding(models.Model):
        def visit(self, layer, h):
            return layer(h, h.abs().mean())

    torch.manual_seed(0)
    with pytest.raises(CanaryError, match="skip_first"):
        evaluate(Feeding([Gated() for _ in range(3)]), models.tokens())


def test_a_head_path_without_its_soft_cap_fails_a_canary():
    model = models.mixing(2)
    subject = Subject(model, read_out=lambda h: model.head(model.norm(h)))
    with pytest.raises(CanaryError, match="lens_last_state"):
        evaluate(subject, models.tokens())


def test_a_layer_that_is_never_called_fails_a_canary():
    model = models.mixing(3, order=[0, 2])
    with pytest.raises(CanaryError, match="hooks_fired"):
        evaluate(model, models.tokens())


def test_canaries_say_what_they_found():
    run = engine(models.mixing(3))
    with run.subject.frozen():
        found = check(run.subject, run.record()[0])
    assert set(found) == {"hooks_fired", "skip_first", "skip_middle", "lens_last_state", "sum_of_writes"}
    assert all(canary.passed for canary in found.values())
    assert found["skip_first"].value == found["skip_middle"].value == 0.0


def test_capture_counts_shared_layers_once_a_visit():
    model = models.mixing(2, order=[0, 1, 0])
    with torch.no_grad(), capturing(list(model.layers)) as seen:
        model(models.tokens()[:, :-1])
    assert [call.module for call in seen.calls] == [model.layers[i] for i in (0, 1, 0)]


def test_finding_layers():
    outer = nn.Module()
    outer.model = models.mixing(3)
    assert find_layers(outer) == list(outer.model.layers)
    outer.other = models.mixing(2)
    with pytest.raises(ValueError, match=r"model\.layers, other\.layers"):
        find_layers(outer)
    with pytest.raises(ValueError, match="no module list at all"):
        find_layers(nn.Linear(2, 2))


def test_a_model_without_read_out_says_so():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([models.Mixing()])

    with pytest.raises(ValueError, match="read_out="):
        Subject(Bare())


def test_no_cache_is_asked_for():
    class Cached(models.Model):
        def forward(self, ids, use_cache=True):
            assert not use_cache
            return super().forward(ids)

    assert evaluate(Cached([models.Mixing()]), models.tokens(), ["stream"]).depth == 1
