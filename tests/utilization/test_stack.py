"""Stacked altered streams: equal to 1e-5, fewer calls, never where they could be wrong, and said so."""

import warnings

import pytest
import torch
from torch import nn

from depthkit.utilization import Sequences, Subject, evaluate
from depthkit.utilization.edits import Parallel, Replace, SkipBranch, SkipEarly, reorder, repeat, skip, swap
from depthkit.utilization.nested import joined, parted
from depthkit.utilization.options import ReplayOptions
from depthkit.utilization.repeats import REPEATED, SHARED, VALUE, UnknownArgument, learn
from depthkit.utilization.repeats import repeat as repeated
from depthkit.utilization.replay import Engine
from tests.models import make_ids, make_model, redraw
from tests.utilization import models
from tests.utilization.families import family
from tests.utilization.test_planned import MODELS, build

STACK = ReplayOptions(stack=True)
EDITS = [
    *(skip(visit) for visit in range(4)),
    swap(0, 2),
    repeat(1, 2),
    reorder(1, (2, 1)),
    SkipEarly(1, 2),
    Parallel(0, 2),
]


def ends(subject, data, edits, options, batch_tokens=64):
    engine = Engine(subject, data, batch_tokens, options=options)
    with subject.frozen():
        traces = engine.record()
        steps = list(engine.sweep(traces, edits))
    found = {(s.edit, s.visit, s.trace.rows.start): s for s in steps}
    assert len(found) == len(steps)
    return engine, found


def compare(model, data, edits=EDITS, batch_tokens=64):
    """Every step of the stacked sweep is the single one up to rounding, at the same cost in evaluations."""
    subject = Subject(model)
    alone, one = ends(subject, data, edits, ReplayOptions(), batch_tokens)
    together, other = ends(subject, data, edits, STACK, batch_tokens)
    assert together.cost()["stacked"] is True
    assert alone.layer_evals == together.layer_evals
    assert one.keys() == other.keys()
    for key, step in one.items():
        for name in ("before", "after", "final"):
            values = [getattr(each, name) for each in (step, other[key])]
            torch.testing.assert_close(*values, rtol=1e-4, atol=1e-5) if values[0] is not None else None
        if step.scores is not None:
            torch.testing.assert_close(other[key].scores.nats, step.scores.nats, rtol=0, atol=1e-5)
            assert torch.equal(other[key].scores.correct, step.scores.correct)


@pytest.mark.parametrize("name", MODELS)
def test_own_models(name):
    several = MODELS[name].get("stream") is not None  # in which a stream cannot be replaced
    edits = [*(EDITS[:7] if several else EDITS), SkipBranch(1, "ffn"), SkipBranch(0, "mixer")]
    compare(build(name), Sequences.of(make_ids(3, 10, 11)), edits, batch_tokens=100)


def test_documents_and_a_window_go_with_the_batch():
    blocks = {"dense": {"mixer": {"kind": "gqa", "num_heads": 2, "window": 4}, "ffn": "swiglu"}}
    model = redraw(make_model(depth=4, blocks=blocks)).eval()
    windows = make_ids(4, 10)
    documents = (torch.arange(9) >= torch.tensor([[2], [4], [6], [8]])).long()
    data = Sequences.of_targets(windows[:, :-1], windows[:, 1:], documents)
    compare(model, data, batch_tokens=80)
    compare(model, data, batch_tokens=30)  # micro-batches of 3 windows and of 1, which fits several times


@pytest.mark.parametrize("kind", [models.Mixing, models.TupleOut, models.Keyword])
def test_any_model(kind):
    compare(models.mixing(4, kind), Sequences.of(models.tokens(1)), batch_tokens=40)


@pytest.mark.parametrize("name", ["llama", "gemma2", "bloom", "mixtral", "gptj"])
def test_hugging_face_families(name):
    model = family(name)
    compare(model, Sequences.of(models.tokens(2, 9, vocab=97)), EDITS[:6], batch_tokens=64)


def calls(model, options, batch_tokens=64):
    made = []
    handles = [layer.register_forward_hook(lambda *_: made.append(1)) for layer in model.layers]
    engine, _ = ends(Subject(model), Sequences.of(models.tokens(1)), EDITS[:4], options, batch_tokens)
    for handle in handles:
        handle.remove()
    return len(made), engine.layer_evals


def test_streams_share_calls():
    """Depth 4: recording 4 calls; visit v then runs v streams, in one call."""
    model = models.mixing(4)
    assert calls(model, ReplayOptions()) == (4 + 6, 10)
    # Learning costs 4 calls; the canary's skips of visits 0 and 2, 3 + 1 alone, and 3 together.
    assert calls(model, STACK) == (4 + 4 + (3 + 1) + 3 + 3, 10)
    # No more than two windows of 12 tokens at once: visit 3 takes two calls for its three streams.
    assert calls(model, STACK, batch_tokens=24) == (4 + 4 + 4 + 3 + 4, 10)


@pytest.mark.parametrize(
    "edit", [*EDITS, SkipBranch(1, "ffn"), Replace(1, "same", lambda stream, rows: stream)]
)
def test_plain_is_the_visit_itself_and_nothing_else(edit):
    class Bare:
        rows = slice(0, 1)
        stream = staticmethod(lambda carried: carried)
        with_stream = staticmethod(lambda carried, stream: stream)

    for visit in range(edit.first, 5):
        seen, state, given = [], torch.zeros(1, 3, 2), torch.ones(1, 3, 2)

        def run(which, carried, without=(), seen=seen, given=given):
            seen.append((which, carried, tuple(without)))
            return given, {}

        after, _ = edit.apply(visit, state, run, Bare())
        itself = len(seen) == 1 and seen[0] == (visit, state, ()) and after is given
        assert edit.plain(visit) == itself


class Odd(models.Mixing):
    """Takes a tensor that grows with the batch in no known way."""

    def forward(self, h, extra=None):
        return super().forward(h) + 0 * extra.sum()


class Feeding(models.Model):
    def visit(self, layer, h):
        return layer(h, extra=torch.arange(float(len(h) + 1)))


class Crowd(models.Mixing):
    """Sequences of a batch see each other, which no argument shows."""

    def forward(self, h):
        return super().forward(h) + 0.1 * h.mean(0, keepdim=True)


@pytest.mark.parametrize(
    ("model", "batch_tokens", "reason"),
    [
        (
            lambda: Feeding([Odd() for _ in range(3)]),
            64,
            r"argument extra \(tensor \[2\]\) goes with the batch",
        ),
        (lambda: models.mixing(3, Crowd), 64, "stacked losses are off by"),
        (lambda: models.mixing(3), 12, "12 tokens does not fit twice into batch_tokens=12"),
    ],
    ids=["unknown argument", "canary", "no effect"],
)
def test_what_cannot_be_stacked_is_run_alone_and_said(model, batch_tokens, reason):
    torch.manual_seed(0)
    subject, data = Subject(model()), Sequences.of(models.tokens(1))
    _, alone = ends(subject, data, EDITS[:3], ReplayOptions(), batch_tokens)
    with pytest.warns(UserWarning, match=reason):
        engine, found = ends(subject, data, EDITS[:3], STACK, batch_tokens)
    assert engine.cost()["stacked"] is False
    assert all(torch.equal(step.after, found[key].after) for key, step in alone.items())


def test_probes_that_read_aux_see_exact_streams():
    model, windows = build("moe"), make_ids(2, 9, 11)
    probes = ["routing_change", "ablation"]
    exact = evaluate(model, windows, probes, batch_tokens=64)
    report = evaluate(model, windows, probes, batch_tokens=64, replay=STACK)
    assert report.per_visit("routing_change.mean") == exact.per_visit("routing_change.mean")
    # The last skip is asked for by ablation alone, and has no visit after it.
    assert report.per_visit("ablation_delta_nats.skip") == exact.per_visit("ablation_delta_nats.skip")


def test_a_report_says_it():
    model = models.mixing(5)
    plain = evaluate(model, models.tokens(1))
    report = evaluate(model, models.tokens(1), replay=STACK)
    assert report.content["timing"]["stacked"] is True
    assert "stacked" not in plain.content["timing"]
    assert report.content["timing"]["layer_evals"] == plain.content["timing"]["layer_evals"] == 15
    for name in plain.metrics:
        for a, b in zip(plain.per_visit(name), report.per_visit(name), strict=True):
            assert a == b if a is None else b == pytest.approx(a, rel=1e-4, abs=1e-5)


def test_a_depth_of_one_has_nothing_to_stack():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert evaluate(models.mixing(1), models.tokens(1), ["ablation"], replay=STACK).depth == 1


def test_nested_values_join_and_part():
    values = [(torch.full((2, 3), float(i)), (torch.arange(2.0) + i,), None) for i in range(3)]
    whole = joined(values)
    assert whole[0].shape == (6, 3)
    for value, part in zip(values, parted(whole, 3), strict=True):
        assert torch.equal(value[0], part[0])
        assert torch.equal(value[1][0], part[1][0])
        assert part[2] is None
    assert parted((), 2) == [(), ()]


def test_rules_of_arguments():
    mask, table = torch.rand(2, 1, 3, 3), torch.rand(1, 3)
    value = {"mask": mask, "tables": (table, mask.flatten()), "n": 2, "off": None}
    twice = {
        "mask": torch.cat([mask, mask]),
        "tables": (table, mask.flatten().repeat(2)),
        "n": 2,
        "off": None,
    }
    rules = learn(value, twice, "")
    assert rules == {"mask": REPEATED, "tables": [SHARED, REPEATED], "n": VALUE, "off": VALUE}
    found = repeated(value, rules, 3, {})
    assert torch.equal(found["mask"], mask.repeat(3, 1, 1, 1))
    assert found["tables"][0] is table
    with pytest.raises(UnknownArgument, match=r"argument tables\[1\] \(tensor \[18\]\)"):
        learn(value, twice | {"tables": (table, mask.flatten().repeat_interleave(2))}, "")
    with pytest.raises(UnknownArgument, match="argument cache \\(Module\\)"):
        learn({"cache": nn.Module()}, {"cache": nn.Module()}, "")
    with pytest.raises(UnknownArgument, match="differs in form between micro-batches"):
        repeated(value | {"off": mask}, rules, 2, {})
