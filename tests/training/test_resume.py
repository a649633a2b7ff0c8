"""An interrupted and resumed run is the uninterrupted one, bit for bit."""

import json
import signal

import pytest

from depthkit.training import checkpoint, metrics
from depthkit.training.recorder import Recorder
from depthkit.training.run import train
from tests.training.helpers import digests, losses

STEPS = 12


@pytest.fixture
def stop_after(monkeypatch):
    """Send this process SIGTERM during the given step, as `kill` would."""
    real = Recorder.train

    def arm(step, number=signal.SIGTERM):
        def train_row(self, at, **values):
            if at == step:
                signal.raise_signal(number)
            return real(self, at, **values)

        monkeypatch.setattr(Recorder, "train", train_row)

    return arm


@pytest.mark.parametrize("stops", [(1,), (4, 5), (3, 9), (11,)], ids=str)
@pytest.mark.parametrize(
    "model", [{}, {"loops": 2, "regulators": ["lns"], "head": {"tied": True}}], ids=["plain", "looped"]
)
def test_stopped_and_resumed_equals_uninterrupted(run, tmp_path, stop_after, stops, model):
    config = run(steps=STEPS, model=model, telemetry_every=3, eval_every=4)
    whole = train(config, tmp_path / "whole", quiet=True)
    for step in stops:
        stop_after(step)
        stopped = train(config, tmp_path / "parts", resume=True, quiet=True)
        assert (stopped["step"], stopped["stopped"]) == (step, "SIGTERM")
    stop_after(None)
    parts = train(config, tmp_path / "parts", resume=True, quiet=True)
    differing = {"run_dir", "seconds"}
    assert {k: v for k, v in parts.items() if k not in differing} == {
        k: v for k, v in whole.items() if k not in differing
    }
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert len(losses(tmp_path / "parts")) == STEPS
    assert digests(tmp_path / "parts", STEPS) == digests(tmp_path / "whole", STEPS)
    for event in ("validation", "telemetry"):
        first, second = (metrics.read(tmp_path / f / "metrics.jsonl", event) for f in ("whole", "parts"))
        assert first == second


def test_the_run_crosses_an_epoch(run, make_trainer):
    trainer = make_trainer(steps=STEPS)
    windows = (trainer.data.summary()["train_tokens"] - 1) // 16
    assert windows < STEPS * 8


def test_resuming_from_an_earlier_step_repeats_it_and_sets_rows_aside(run, tmp_path):
    config = run(steps=STEPS)
    train(config, tmp_path / "run", quiet=True)
    before, weights = losses(tmp_path / "run"), digests(tmp_path / "run", STEPS)
    again = train(config, tmp_path / "run", resume=4, quiet=True)
    assert again["step"] == STEPS
    assert losses(tmp_path / "run") == before
    assert digests(tmp_path / "run", STEPS) == weights
    aside = (tmp_path / "run" / "metrics.discarded.jsonl").read_text().splitlines()
    assert [r["step"] for r in map(json.loads, aside) if r["event"] == "train"] == list(range(5, STEPS + 1))
    events = [(r["event"], r["step"]) for r in metrics.read(tmp_path / "run" / "metrics.jsonl")]
    assert ("resume", 4) in events
    assert events.count(("end", STEPS)) == 1


def test_a_run_stopped_before_its_first_step_resumes_too(run, tmp_path, monkeypatch):
    config = run(steps=4)
    train(config, tmp_path / "whole", quiet=True)
    real = Recorder.event

    def event(self, name, step, **values):
        if name == "start":
            signal.raise_signal(signal.SIGTERM)
        return real(self, name, step, **values)

    monkeypatch.setattr(Recorder, "event", event)
    assert train(config, tmp_path / "run", quiet=True)["step"] == 0
    monkeypatch.undo()
    train(config, tmp_path / "run", resume=True, quiet=True)
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


def test_without_a_checkpoint_a_resumed_run_starts_over(run, tmp_path, monkeypatch):
    config = run(steps=STEPS)
    train(config, tmp_path / "whole", quiet=True)
    monkeypatch.setattr(
        "depthkit.training.saving.save", lambda *_: (_ for _ in ()).throw(RuntimeError("lost"))
    )
    with pytest.raises(RuntimeError, match="lost"):
        train(config, tmp_path / "run", quiet=True)
    monkeypatch.undo()
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == []
    train(config, tmp_path / "run", resume=True, quiet=True)
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


def test_a_damaged_latest_is_refused_and_the_one_offered_works(run, tmp_path, stop_after):
    config = run(steps=STEPS, checkpoint_every=3)
    train(config, tmp_path / "whole", quiet=True)
    stop_after(7)
    train(config, tmp_path / "run", quiet=True)
    stop_after(None)
    damaged = tmp_path / "run" / "checkpoints" / "step_00000007" / "optim.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-3])
    rows = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match=r"optim.safetensors is damaged.*--resume-from 6"):
        train(config, tmp_path / "run", resume=True, quiet=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == rows
    train(config, tmp_path / "run", resume=6, quiet=True)
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert digests(tmp_path / "run", STEPS) == digests(tmp_path / "whole", STEPS)


def test_the_thread_count_of_the_start_is_kept(run, tmp_path, stop_after, monkeypatch):
    import torch

    seen = []
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    config = run(steps=4, threads=None)
    stop_after(2)
    train(config, tmp_path / "run", quiet=True)
    state = json.loads((tmp_path / "run/checkpoints/step_00000002/state.json").read_text())
    stop_after(None)
    seen.clear()
    train(config, tmp_path / "run", resume=True, quiet=True)
    assert seen[0] == state["threads"] == 1


def test_training_leaves_the_callers_generator_and_handlers_alone(run, tmp_path):
    import torch

    torch.manual_seed(5)
    before = torch.get_rng_state()
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    train(run(steps=2), tmp_path / "run", quiet=True)
    assert torch.equal(torch.get_rng_state(), before)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
