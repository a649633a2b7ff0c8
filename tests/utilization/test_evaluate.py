"""What an evaluation may depend on, what it refuses, and depthkit's own models."""

import numpy as np
import pytest
import torch

from depthkit.model import unroll
from depthkit.utilization import PROBES, Sequences, Subject, evaluate
from depthkit.utilization.edits import skip
from depthkit.utilization.options import PRESETS, EvalOptions, probe_configs
from depthkit.utilization.probe import Probe
from depthkit.utilization.result import Result, Scalar
from depthkit.utilization.sequences import draw
from tests.models import make_ids, make_model, redraw
from tests.utilization import models


def numbers(report):
    """Everything measured, as one flat mapping."""
    found = {("scalar", name): report.scalar(name) for name in report.content["scalars"]}
    for name in report.metrics:
        found |= {(name, visit): value for visit, value in enumerate(report.per_visit(name))}
    return found


def assert_same(first, second, tolerance=2e-4):
    a, b = numbers(first), numbers(second)
    assert a.keys() == b.keys()
    for key, value in a.items():
        assert value == b[key] or value == pytest.approx(b[key], rel=tolerance, abs=1e-6), key
    for name, matrix in first.arrays.items():
        if not name.endswith(("sums", "counts")):
            np.testing.assert_allclose(matrix, second.arrays[name], rtol=tolerance, atol=1e-6)


@pytest.fixture(scope="module")
def model():
    return models.mixing(4, seed=5)


@pytest.fixture(scope="module")
def report(model):
    return evaluate(model, models.tokens())


@pytest.mark.parametrize("batch_tokens", [1, 30, 36])
def test_micro_batches_do_not_matter(model, report, batch_tokens):
    assert_same(report, evaluate(model, models.tokens(), batch_tokens=batch_tokens))


def test_order_of_sequences_does_not_matter(model, report):
    assert_same(report, evaluate(model, models.tokens().flip(0), batch_tokens=24))


def test_padding_does_not_matter(model, report):
    windows = models.tokens()
    ids, targets = windows[:, :-1], windows[:, 1:]
    pad = torch.full((6, 5), 3)
    real = torch.cat([torch.ones_like(ids), torch.zeros_like(pad)], 1).bool()
    padded = evaluate(model, (torch.cat([ids, pad], 1), torch.cat([targets, pad], 1), real))
    assert_same(report, padded)
    assert padded.content["data"]["n_tokens_scored"] == 72


def test_a_row_of_padding_does_not_matter(model, report):
    windows = torch.cat([models.tokens(), torch.zeros(1, 13, dtype=torch.int64)])
    real = torch.ones(7, 12, dtype=torch.bool)
    real[6] = False
    padded = evaluate(model, (windows[:, :-1], windows[:, 1:], real), batch_tokens=12)
    assert_same(report, padded)


def test_subsampled_lens_does_not_depend_on_batches_or_order(model):
    probe = [{"kind": "lens", "max_logits": 13 * 6 * 3}]
    first = evaluate(model, models.tokens(), probe)
    assert_same(first, evaluate(model, models.tokens().flip(0), probe, batch_tokens=12))
    other = evaluate(model, models.tokens(), probe, seed=1)
    assert other.per_visit("exit_loss_nats.mean") != first.per_visit("exit_loss_nats.mean")


def test_the_seed_moves_intervals_only(model, report):
    again, other = (evaluate(model, models.tokens(), seed=seed) for seed in (0, 1))
    metric = "ablation_delta_nats.skip"
    assert again.interval(metric) == report.interval(metric) != other.interval(metric)
    assert other.per_visit(metric) == report.per_visit(metric)


def test_data_are_identified(model, report):
    other = evaluate(model, models.tokens(seed=1), ["stream"]).content["data"]
    same = evaluate(model, models.tokens(), ["stream"]).content["data"]
    assert same == report.content["data"] != other
    assert same | {"sha256": ""} == {
        "sha256": "",
        "n_seq": 6,
        "seq_len": 12,
        "n_tokens_scored": 72,
        "seed": 0,
    }


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(3, 1, dtype=torch.int64), r"\[N, T\+1\]"),
        (torch.zeros(3, 4), "int64"),
        ((torch.zeros(2, 3, dtype=torch.int64),) * 2, "tuple"),
        (torch.full((2, 5), 13), "from 13 to 13, the model knows 13"),
        (torch.full((2, 5), -1), "from -1 to -1"),
    ],
)
def test_unusable_sequences(model, value, message):
    subject = Subject(model)
    subject.model.vocab_size = models.VOCAB
    with pytest.raises(ValueError, match=message):
        evaluate(subject, value)


def test_nothing_to_score(model):
    ids = torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="no token to score"):
        evaluate(model, (ids, ids, torch.zeros(2, 3, dtype=torch.bool)))
    with pytest.raises(ValueError, match="padded position has a target"):
        Sequences(ids, ids, torch.zeros(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="mask has shape"):
        Sequences(ids, ids, torch.zeros(2, 2, dtype=torch.bool))


def test_padding_is_what_follows_the_last_target():
    targets = torch.tensor([[5, -100, 6, -100, -100]])
    found = Sequences.of_targets(torch.ones_like(targets), targets)
    assert found.mask.tolist() == [[True, True, True, False, False]]
    assert found.num_scored == 2


def test_drawing_windows_is_seeded():
    all_of_them = Sequences.of(models.tokens(20))
    first, again, other = (draw(all_of_them, 5, seed).ids for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    rows = [all_of_them.ids.tolist().index(row) for row in first.tolist()]
    assert rows == sorted(set(rows))
    assert draw(all_of_them, 50, 0) is all_of_them


class TestProbeChoice:
    def test_presets(self):
        assert [config.kind for config in probe_configs()] == list(PRESETS["quick"])
        assert all(set(preset) <= set(PROBES.names()) for preset in PRESETS.values())
        assert [config.kind for config in probe_configs("states")] == list(PRESETS["states"])

    @pytest.mark.parametrize(
        ("probes", "message"),
        [
            (["ablaton"], "did you mean 'ablation'"),
            ("quik", "did you mean 'quick'"),
            (["lens", "lens"], "each once"),
            ([], "at least one"),
        ],
    )
    def test_mistakes(self, model, probes, message):
        with pytest.raises(ValueError, match=message):
            evaluate(model, models.tokens(), probes)

    def test_options_name_the_nearest(self):
        with pytest.raises(ValueError, match="did you mean 'quick'"):
            EvalOptions(preset="quik")
        assert EvalOptions(probes=["lens"]).probes[0].max_logits == 2**24

    def test_a_new_probe_is_one_class(self, model):
        @PROBES.register("counting")
        class Counting(Probe):
            """Counts what the sweep gives."""

            steps = 0

            def edits(self):
                return [skip(visit) for visit in range(self.depth)]

            def update(self, step):
                self.steps += 1

            def compute(self):
                return Result(scalars={"steps": Scalar(self.steps, "steps seen")})

        try:
            report = evaluate(model, models.tokens(), ["counting"], batch_tokens=36)
        finally:
            PROBES.remove("counting")
        assert report.scalar("steps") == 2 * 10


class TestTransformer:
    """depthkit's own models."""

    @pytest.mark.parametrize(
        "settings",
        [
            {"depth": 3},
            {"depth": 3, "regulators": ["lns"]},
            {"depth": 2, "placement": "post"},
            {"depth": 2, "loops": 3},
        ],
    )
    def test_every_probe_and_canary(self, settings):
        model = redraw(make_model(**settings))
        windows = make_ids(4, 10)
        report = evaluate(model, windows)
        assert all(canary["passed"] for canary in report.content["canaries"].values())
        losses = model.token_losses(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())
        assert report.content["baseline"]["loss_nats"] == pytest.approx(float(losses.mean()), rel=1e-5)
        depth = model.plan.depth
        assert report.content["timing"]["layer_evals"] == depth * (depth + 1) // 2

    def test_loops_are_keyed_by_the_plan(self):
        report = evaluate(redraw(make_model(depth=2, loops=3)), make_ids(4, 10), ["stream"])
        keys = [
            (row["segment"], row["loop"], row["slot"], row["layer"]) for row in report.content["per_visit"]
        ]
        assert keys == [("trunk", loop, slot, slot) for loop in range(3) for slot in range(2)]
        assert report.visit_noun == "visit"
        assert report.content["model"]["num_layers"] == 2

    def test_looped_is_measured_as_unrolled(self):
        looped = redraw(make_model(depth=2, loops=2))
        first, second = (evaluate(m, make_ids(4, 10), ["ablation"]) for m in (looped, unroll(looped)))
        metric = "ablation_delta_nats.skip"
        assert first.per_visit(metric) == second.per_visit(metric)
        assert second.visit_noun == "layer"

    def test_training_goes_on_afterwards(self):
        model = redraw(make_model()).train()
        evaluate(model, make_ids(4, 10))
        ids = make_ids(4, 10)
        loss = model(ids[:, :-1], targets=ids[:, 1:]).loss
        loss.backward()
        assert model.training
        assert torch.isfinite(loss)

    def test_documents_reach_the_model(self):
        model = redraw(make_model())
        windows = make_ids(4, 10)
        ids, targets = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
        documents = (torch.arange(9) >= 4).long().expand(4, 9).contiguous()
        real = torch.ones_like(ids, dtype=torch.bool)
        losses = [
            evaluate(model, Sequences(ids, targets, real, which), ["ablation"]).content["baseline"][
                "loss_nats"
            ]
            for which in (None, documents)
        ]
        own = float(model.token_losses(ids, targets, documents=documents).mean())
        assert losses[1] == pytest.approx(own, rel=1e-5)
        assert losses[0] != pytest.approx(losses[1], rel=1e-4)
