"""Loop counts over training: seeds, curricula, and runs that sample them, resumed bit for bit."""

import itertools
import signal

import numpy as np
import pytest
import torch

from depthkit.data import Batch
from depthkit.model import ModelConfig, account
from depthkit.training import metrics
from depthkit.training.looping import CURRICULA, loop_counts, noise
from depthkit.training.recorder import Recorder
from depthkit.training.run import train
from tests.models import model_dict, redraw
from tests.training.helpers import digests, losses
from tests.training.test_step import batch

MIXER = {"kind": "gqa", "num_heads": 2, "num_kv_heads": 1}
UNIFORM = {"kind": "uniform", "max": 6, "backprop": 2}


def model(core=None, loops=UNIFORM, ffn="swiglu"):
    core = {"inject": "linear", "state_init": "normal"} if core is None else core
    return {
        "blocks": {"dense": {"mixer": MIXER, "ffn": ffn}},
        "segments": [
            {"name": "core", "pattern": ["dense"], "loops": loops, **core},
            {"name": "coda", "pattern": ["dense"]},
        ],
    }


def config(loops, **core):
    return ModelConfig.model_validate(model_dict(**model(core, loops)))


def test_counts_are_a_function_of_seed_step_and_micro_batch():
    sampled = config({"kind": "uniform", "max": 50})
    draw = lambda *place: loop_counts(sampled, *place)["core"]  # noqa: E731
    places = [(seed, step, micro) for seed in (0, 1) for step in (1, 2, 3) for micro in (0, 1, 2)]
    counts = [draw(*place) for place in places]
    assert counts == [draw(*place) for place in reversed(places)][::-1]
    assert len(set(counts)) > 10
    many = np.array([draw(0, step, 0) for step in range(1, 400)])
    assert many.mean() == pytest.approx(25.5, abs=2.2)
    assert abs(np.corrcoef(many[1:], many[:-1])[0, 1]) < 0.15
    assert noise(0, 3, 1) == noise(0, 3, 1) != noise(0, 3, 2)
    assert noise(0, 3, 1).seed != noise(1, 3, 1).seed


def test_segments_are_drawn_each_on_their_own_and_plain_numbers_are_left_alone():
    two = model_dict(**model({}, {"kind": "uniform", "max": 30}))
    two["segments"][1] = {**two["segments"][0], "name": "again"}
    both = [loop_counts(ModelConfig.model_validate(two), 0, step, 0) for step in range(1, 40)]
    assert sum(counts["core"] == counts["again"] for counts in both) < 10
    assert loop_counts(config(4), 0, 1, 0) is None
    assert loop_counts(config(4), 0, 1, 0, scale=0.5) == {"core": 2}
    assert loop_counts(config(1), 0, 1, 0, scale=0.5) is None


@pytest.mark.parametrize(("kind", "mean"), [("linear", 16.5), ("one_minus_sqrt", 11.2)])
def test_ramps_have_the_published_mean(kind, mean):
    """Of R = 32 over the ramp; then the configured count."""
    settings = CURRICULA.get(kind).Config(fraction=0.25)
    curriculum, fixed, steps = settings.component(settings), config(32), 4000
    counts = [
        (loop_counts(fixed, 0, step, 0, curriculum(step / steps)) or {"core": 32})["core"]
        for step in range(1, steps + 1)
    ]
    ramp = counts[: steps // 4]
    assert np.mean(ramp) == pytest.approx(mean, abs=0.1)
    assert ramp[0] == 1
    assert all(a <= b <= a + 1 for a, b in itertools.pairwise(ramp))
    assert set(counts[steps // 4 :]) == {32}


def test_without_a_curriculum_counts_are_the_configured_ones():
    settings = CURRICULA.get("none").Config()
    assert settings.component(settings)(0.0) == 1
    assert all(CURRICULA.get(name).equation for name in CURRICULA.names())


def seen_loops(trainer, batches, step):
    """Visits of every forward of one step."""
    found, original = [], trainer.model.forward

    def forward(*args, **kwargs):
        output = original(*args, **kwargs)
        found.append(1 + max(v.key.loop for v in output.visits))
        return output

    trainer.model.forward = forward
    trainer.stepper.take(batches, step)
    del trainer.model.forward
    return found


def test_a_step_runs_what_was_drawn_and_a_batch_may_ask_for_its_own(make_trainer):
    trainer = make_trainer(model=model())
    batches = [batch(2, seed=s) for s in range(3)]
    expected = [loop_counts(trainer.model.config, 0, 5, micro)["core"] for micro in range(3)]
    assert seen_loops(trainer, batches, 5) == expected
    asked = Batch(batches[0].ids, batches[0].targets, None, 0, loops=4)
    assert seen_loops(trainer, [asked, batches[1]], 5) == [4, expected[1]]
    ramp = make_trainer(model=model(loops=8), steps=16, loop_curriculum={"kind": "linear", "fraction": 0.5})
    assert [seen_loops(ramp, batches[:1], step) for step in (1, 4, 8, 16)] == [[1], [4], [8], [8]]


def test_a_step_repeats(make_trainer):
    """Two trainers at the same step draw alike; another step or seed draws otherwise."""
    results = {}
    for name, seed, step in (("a", 0, 2), ("b", 0, 2), ("step", 0, 3), ("seed", 7, 2)):
        trainer = make_trainer(model=model(loops=3), seed=seed, clip=None)
        redraw(trainer.model)
        results[name] = trainer.stepper.take([batch(4)], step).loss
    assert results["a"] == results["b"]
    assert len(set(results.values())) == 3


def test_mfu_counts_cut_loops_by_their_forward(make_trainer):
    trainer = make_trainer(model=model())
    counts = account(trainer.model.config, 16)
    assert counts.truncated_flops_per_token > 0
    assert trainer._flops == 3 * counts.flops_per_token - 2 * counts.truncated_flops_per_token


FFN = {"kind": "moe", "num_experts": 4, "hidden_dim": 8, "bias_rate": 0.01, "router": "per_loop"}


@pytest.mark.parametrize("stops", [(4, 5)], ids=str)
def test_a_looped_mixture_stopped_and_resumed_equals_the_uninterrupted_run(run, tmp_path, monkeypatch, stops):
    """Sampled loops, random states, balancing bias, curriculum, checkpointing, telemetry: bit for bit."""
    cfg = run(
        model=model({"inject": "linear", "state_init": "normal", "carry": "mean"}, ffn=FFN),
        telemetry_every=3,
        eval_every=4,
        loop_curriculum="linear",
        activation_checkpointing={"kind": "every_k", "k": 2},
    )
    whole = train(cfg, tmp_path / "whole", quiet=True)
    real = Recorder.train

    def arm(step):
        def row(self, at, **values):
            if at == step:
                signal.raise_signal(signal.SIGTERM)
            return real(self, at, **values)

        monkeypatch.setattr(Recorder, "train", row)

    for step in (*stops, None):
        arm(step)
        parts = train(cfg, tmp_path / "parts", resume=True, quiet=True)
    assert parts["train_loss"] == whole["train_loss"]
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert len(losses(tmp_path / "parts")) == 12
    assert digests(tmp_path / "parts", 12) == digests(tmp_path / "whole", 12)
    for event in ("validation", "telemetry", "experts"):
        first, second = (metrics.read(tmp_path / f / "metrics.jsonl", event) for f in ("whole", "parts"))
        assert first == second
        assert first


def test_unshared_layers_that_no_loop_has_reached_are_saved_and_resumed(run, tmp_path):
    """Their optimiser state does not exist yet."""
    cfg = run(
        model=model({"shared": False, "inject": "add"}, {"kind": "uniform", "max": 4}),
        steps=4,
        loop_curriculum={"kind": "linear", "fraction": 1.0},
        checkpoint_every=1,
        keep=9,
    )
    train(cfg, tmp_path / "run", quiet=True)
    weights = digests(tmp_path / "run", 4)
    train(cfg, tmp_path / "run", resume=1, quiet=True)
    assert digests(tmp_path / "run", 4) == weights


def test_the_balancing_bias_moves_once_a_finite_step_and_never_in_evaluation(make_trainer):
    trainer = make_trainer(model=model(ffn=FFN, loops=2))
    (bank,) = trainer.model.schedules.branch_banks.values()
    calls = []
    trainer.model.after_step = lambda loads: calls.append(loads)
    trainer.stepper.take([batch(2, seed=s) for s in range(3)], 1)
    assert len(calls) == 1
    assert len(calls[0]) == 3
    assert all(load.sum() == 2 * 3 * 2 * 16 for load in calls[0].values())
    trainer.model.embed.weight.data.fill_(float("nan"))
    assert not trainer.stepper.take([batch(2)], 2).finite
    assert len(calls) == 1
    with torch.no_grad():
        trainer.model.eval()(batch(2).ids)
    assert (bank.choice_bias == 0).all()
