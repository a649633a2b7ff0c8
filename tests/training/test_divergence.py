import pytest
import torch

from depthkit.training import metrics
from depthkit.training.diagnosis import first_non_finite
from depthkit.training.run import train
from tests.training.test_step import batch


def poison(trainer, layer):
    trainer.model.layers[layer].ffn.branch.down.weight.data[0] = float("inf")


def test_the_first_visit_with_a_non_finite_value_is_named(make_trainer):
    trainer = make_trainer(model={"depth": 3, "loops": 2})
    poison(trainer, 1)
    where = first_non_finite(trainer.model, batch(2), 1, False)
    assert where == "visit 1 (key trunk.0.1, layer 1, block dense) (forward pass)"


def test_the_embedding_and_the_read_out_have_names(make_trainer):
    trainer = make_trainer()
    trainer.model.head.weight.data[:] = float("inf")
    assert first_non_finite(trainer.model, batch(2), 1, False).startswith("the read-out")
    trainer.model.embed.weight.data[:] = float("nan")
    assert first_non_finite(trainer.model, batch(2), 1, False).startswith("the embedding")


def test_a_parameters_gradient_is_named_when_the_stream_is_finite(make_trainer):
    trainer = make_trainer(model={"depth": 4})
    trainer.model.layers[2].mixer.before.weight.register_hook(lambda gradient: gradient * float("nan"))
    where = first_non_finite(trainer.model, batch(2), 1, False)
    assert where == "parameter layers.2.mixer.before.weight (backward pass)"
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_a_stream_gradient_names_the_visit_it_leaves(make_trainer):
    class Overflow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * float("inf")

    trainer = make_trainer(model={"depth": 4})
    trainer.model.layers[2].register_forward_pre_hook(lambda _, args: (Overflow.apply(args[0]), *args[1:]))
    where = first_non_finite(trainer.model, batch(2), 1, False)
    assert where == "visit 1 (key trunk.0.1, layer 1, block dense) (backward pass)"


def test_a_run_that_diverges_skips_then_stops_and_says_where(run, tmp_path):
    config = run(steps=12, lr=1e30, schedule={"kind": "cosine", "warmup": 0}, max_bad_steps=3, clip=None)
    with pytest.raises(ValueError, match=r"step 4: 3 steps in a row .* First non-finite: visit \d"):
        train(config, tmp_path / "run", quiet=True)
    rows = metrics.read(tmp_path / "run" / "metrics.jsonl")
    events = [(row["event"], row["step"]) for row in rows]
    assert events == [
        ("start", 0), ("train", 1), ("bad_step", 2), ("bad_step", 3), ("bad_step", 4), ("diverged", 4),
    ]  # fmt: skip
    assert [row["in_a_row"] for row in rows if row["event"] == "bad_step"] == [1, 2, 3]


def test_single_bad_steps_are_survived(run, tmp_path, monkeypatch):
    from depthkit.training.step import Stepper

    real = Stepper._accumulate

    def now_and_then(self, batches, step, telemetry, loads):
        loss, objective, scored = real(self, batches, step, telemetry, loads)
        return loss * (float("nan") if step in (3, 5, 6) else 1), objective, scored

    monkeypatch.setattr(Stepper, "_accumulate", now_and_then)
    summary = train(run(steps=8, max_bad_steps=3), tmp_path / "run", quiet=True)
    assert summary["step"] == 8
    steps = [row["step"] for row in metrics.read(tmp_path / "run" / "metrics.jsonl", "train")]
    assert steps == [1, 2, 4, 7, 8]
