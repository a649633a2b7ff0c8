"""depthkit's own models in the replay engine: every stream, loops with all that happens between visits, edits."""

import copy

import pytest
import torch

from depthkit.utilization import Subject, evaluate
from depthkit.utilization.edits import Replace, SkipBranch, SkipEarly, reorder, repeat, skip, swap
from depthkit.utilization.replay import Engine, replay, sweep_cost
from depthkit.utilization.sequences import Sequences
from tests.models import make_model, redraw

LOOPED = {"loops": 3, "inject": "convex", "carry": "mean", "readout": "weighted", "out_norm": True}
HUGINN = {"loops": 2, "inject": "linear", "state_init": "normal", "out_norm": "final"}
MODELS = {
    "plain": {},
    "embedding_skip": {"stream": "embedding_skip"},
    "hyper": {"stream": "hyper"},
    "mhc": {"stream": "mhc"},
    "attention_residual": {"stream": "attention_residual"},
    "looped": {"core": LOOPED},
    "huginn": {"core": HUGINN, "placement": "huginn"},
    "hyper looped": {"core": LOOPED, "stream": "hyper"},
    "moe": {"ffn": {"kind": "moe", "num_experts": 4}},
    "looped moe": {"core": LOOPED, "ffn": {"kind": "moe", "num_experts": 4, "router": "per_loop"}},
}


def build(name="plain"):
    options = dict(MODELS[name])
    mixer = {"kind": "gqa", "num_heads": 2}
    core = {"name": "core", "pattern": ["dense"], "repeat": 2, **options.pop("core", {})}
    blocks = {"dense": {"mixer": mixer, "ffn": options.pop("ffn", "swiglu")}}
    ends = [{"name": name, "pattern": ["dense"]} for name in ("prelude", "coda")]
    return redraw(make_model(blocks=blocks, segments=[ends[0], core, ends[1]], **options)).eval()


def ids(count=3, length=9):
    return torch.randint(0, 11, (count, length), generator=torch.Generator().manual_seed(0))


def recorded(model):
    engine = Engine(Subject(model), Sequences.of(ids()))
    with engine.subject.frozen():
        (trace,) = engine.record()
    return engine, trace


@pytest.mark.parametrize("name", MODELS)
def test_canaries_are_green_and_every_visit_is_measured(name):
    model = build(name)
    report = evaluate(model, ids(4), "quick", batch_tokens=16)
    assert all(canary["passed"] for canary in report.content["canaries"].values())
    depth = model.plan.depth
    assert report.content["timing"]["layer_evals"] == depth * (depth + 1) // 2
    assert len(report.per_visit("ablation_delta_nats.skip")) == depth


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_recording_is_the_models_own_forward(name):
    model = build(name)
    _, trace = recorded(model)
    batch = trace.batch
    assert torch.equal(model.logits(model(batch.ids).hidden), model.read_out(trace.final))


@torch.no_grad()
def test_programs_equal_models_with_their_layers_rearranged():
    model = build()
    _, trace = recorded(model)
    for edit, order in {
        swap(1, 2): [0, 2, 1, 3],
        swap(3, 0): [3, 1, 2, 0],
        repeat(1, 3): [0, 1, 1, 1, 2, 3],
        skip(1, 2): [0, 3],
        skip(0): [1, 2, 3],
        reorder(0, (2, 1, 0)): [2, 1, 0, 3],
    }.items():
        other, state = copy.deepcopy(model), trace.before[0]
        for layer in order:
            state, _ = other.layers[layer](
                state, trace.path.walk._sites[layer], trace.path.walk._contexts["dense"]
            )
        assert torch.equal(replay(trace, edit), state)


@torch.no_grad()
def test_skipping_whole_loops_is_looping_less():
    options = {"segments": [{"name": "core", "pattern": ["dense"], "repeat": 2, "loops": 3}]}
    model = redraw(make_model(**options)).eval()
    _, trace = recorded(model)
    fewer = model(trace.batch.ids, loops=2).hidden
    assert torch.equal(model.read_out(replay(trace, skip(4, 5))), model.logits(fewer))


@pytest.mark.parametrize(("branch", "matrix"), [("mixer", "mixer.branch.o"), ("ffn", "ffn.branch.down")])
@torch.no_grad()
def test_a_skipped_branch_equals_a_zeroed_output_matrix(branch, matrix):
    model = build()
    _, trace = recorded(model)
    other = copy.deepcopy(model)
    other.layers[1].get_submodule(matrix).weight.zero_()
    expected = other.logits(other(trace.batch.ids).hidden)
    torch.testing.assert_close(model.read_out(replay(trace, SkipBranch(1, branch))), expected)


@torch.no_grad()
def test_early_positions_alone_are_skipped():
    _, trace = recorded(build())
    ends = replay(trace, SkipEarly(3, 4))
    assert torch.equal(ends[:, :4], trace.before[3][:, :4])
    assert torch.equal(ends[:, 4:], trace.after[3][:, 4:])
    assert torch.equal(replay(trace, SkipEarly(1, 0)), trace.final)


@torch.no_grad()
def test_a_replaced_visit_gets_the_rows_of_its_micro_batch():
    model = build()
    engine = Engine(Subject(model), Sequences.of(ids(4)), batch_tokens=16)
    seen = []

    def double(stream, rows):
        seen.append((rows.start, rows.stop))
        return 2 * stream

    edit = Replace(2, "double", double)
    with engine.subject.frozen():
        traces = engine.record()
        steps = [step for step in engine.sweep(traces, [edit, edit]) if step.visit == 2]
    assert seen == [(0, 2), (2, 4)]
    for step in steps:
        assert torch.equal(step.after, 2 * step.trace.before[2])
    assert engine.layer_evals == 4 + 1 == sweep_cost(4, [edit])


def test_a_state_of_a_model_with_several_residuals_cannot_be_replaced():
    _, trace = recorded(build("mhc"))
    with pytest.raises(ValueError, match="'mhc' carries more than one residual"):
        replay(trace, Replace(1, "same", lambda stream, rows: stream))


@torch.no_grad()
def test_cost_of_every_edit_is_what_runs():
    model = build()
    engine, trace = recorded(model)
    edits = [skip(1), skip(0, 3), swap(0, 2), repeat(2, 4), SkipBranch(2, "ffn"), SkipEarly(1, 3)]
    list(engine.sweep([trace], edits))
    assert engine.layer_evals == sweep_cost(4, edits)
