"""A run from outside: what lies in its folder, what it says, what it refuses."""

import json

import pytest
import torch
import yaml

from depthkit.data.tokenizers.bytes import ByteTokenizer
from depthkit.model.transformer import Transformer
from depthkit.training import metrics
from depthkit.training.run import train
from tests.training.helpers import losses


def test_the_folder_holds_what_the_design_says(run, tmp_path):
    folder = tmp_path / "run"
    summary = train(run(telemetry_every=5), folder, quiet=True)
    assert sorted(p.name for p in folder.iterdir()) == [
        "checkpoints",
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "plan.json",
        "tb",
    ]
    plan = json.loads((folder / "plan.json").read_text())
    assert plan[1] == {"visit": 1, "key": "trunk.0.1", "layer": 1, "block": "dense"}
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["threads"] == 1
    assert summary["step"] == 12
    assert summary["val_loss"] < losses(folder)[1]


def test_rows_carry_the_keys_that_readers_rely_on(run, tmp_path):
    folder = tmp_path / "run"
    config = run(telemetry_every=5, eval_every=6)
    train(config, folder, quiet=True)
    rows = metrics.read(folder / "metrics.jsonl")
    by_event = {event: [r for r in rows if r["event"] == event] for event in {r["event"] for r in rows}}
    assert {e: len(r) for e, r in by_event.items()} == {
        "start": 1, "train": 12, "telemetry": 2, "validation": 2, "end": 1,
    }  # fmt: skip
    assert {"step", "loss", "grad_norm", "lr", "tokens", "tok_s", "mfu", "memory_mb"} <= by_event["train"][
        0
    ].keys()
    assert all(("loss" in row) == (row["event"] == "train") for row in rows)
    assert [row["tokens"] for row in by_event["train"]] == [128 * step for step in range(1, 13)]
    schedule = config.train.schedule.component(config.train.schedule, 12)
    assert [row["lr"] for row in by_event["train"]] == [1e-2 * schedule(step) for step in range(1, 13)]
    assert len(by_event["telemetry"][0]["variance"]) == 2


def test_the_end_is_printed_with_the_unigram_entropy(run, tmp_path, capsys):
    summary = train(run(steps=2), tmp_path / "run")
    out = capsys.readouterr().out
    assert f"held-out loss {summary['val_loss']:.4f} nats per token" in out
    assert f"byte-unigram entropy of the held-out text {summary['unigram_entropy']:.4f}" in out
    assert "embedding std 0.02" in out


def test_quiet_prints_nothing(run, tmp_path, capsys):
    train(run(steps=2), tmp_path / "run", quiet=True)
    assert capsys.readouterr() == ("", "")


def test_a_run_from_before_a_setting_existed_is_the_same_run(run, tmp_path):
    config = run(steps=2)
    train(config, tmp_path / "run", quiet=True)
    path = tmp_path / "run" / "config.yaml"
    older = [line for line in path.read_text().splitlines() if "profile:" not in line]
    path.write_text("\n".join(older) + "\n")
    assert train(config, tmp_path / "run", resume=True, quiet=True)["step"] == 2


def test_a_folder_with_another_config_is_refused_and_left_alone(run, tmp_path):
    train(run(steps=2), tmp_path / "run", quiet=True)
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match=r"another config(.|\n)*train.lr: 0.01 there, 0.001 here"):
        train(run(steps=2, lr=1e-3), tmp_path / "run", resume=True, quiet=True)
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before


def test_a_folder_with_this_run_is_refused_without_resume(run, tmp_path):
    train(run(steps=2), tmp_path / "run", quiet=True)
    with pytest.raises(ValueError, match=r"already holds this run \(finished\): continue it with --resume"):
        train(run(steps=2), tmp_path / "run", quiet=True)


def test_resuming_a_finished_run_gives_its_summary(run, tmp_path):
    first = train(run(steps=2), tmp_path / "run", quiet=True)
    rows = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    again = train(run(steps=2), tmp_path / "run", resume=True, quiet=True)
    assert {**again, "seconds": 0} == {**first, "seconds": 0}
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == rows


def test_another_tokenizer_than_the_checkpoints_is_refused(run, tmp_path, monkeypatch):
    train(run(steps=4), tmp_path / "run", quiet=True)
    real = ByteTokenizer.__init__

    def changed(self, *arguments):
        real(self, *arguments)
        self.fingerprint = "0" * 64

    monkeypatch.setattr(ByteTokenizer, "__init__", changed)
    with pytest.raises(
        ValueError, match=r"data.tokenizer: .*step_00000004 was trained with another tokenizer"
    ):
        train(run(steps=4), tmp_path / "run", resume=4, quiet=True)


def test_too_few_ids_are_refused_before_anything_is_allocated(run, tmp_path, monkeypatch):
    monkeypatch.setattr(Transformer, "__init__", lambda *_, **__: pytest.fail("allocated"))
    with pytest.raises(ValueError, match=r"model.vocab_size: 31 is less than"):
        train(run(model={"vocab": 31}), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_gpu_that_is_not_there_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"train.device: 'cuda', but PyTorch finds no GPU"):
        train(run(device="cuda"), tmp_path / "run", quiet=True)


def test_config_yaml_is_the_resolved_config(run, tmp_path):
    from depthkit import config as configs

    train(run(steps=1), tmp_path / "run", quiet=True)
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text()) == configs.to_dict(run(steps=1))


def test_two_seeds_differ_in_weights_and_order(make_trainer):
    first, second = make_trainer(seed=0), make_trainer(seed=1)
    assert not torch.equal(first.model.embed.weight, second.model.embed.weight)
    batches = [next(trainer.data.train(4)) for trainer in (first, second)]
    assert not torch.equal(batches[0].ids, batches[1].ids)
