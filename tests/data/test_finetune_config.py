"""`configs/finetune.yaml`: shown without training, and a pretrained run that goes on with it."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from depthkit import config as configs
from depthkit.training.dry_run import dry_run
from depthkit.training.run import train

ROOT = Path(__file__).parent.parent.parent
SMALL = [
    "model.dim=16",
    "model.blocks.dense.mixer.num_heads=2",
    "model.segments.core.repeat=1",
    "train.batch_size=2",
    "train.steps=3",
    "train.threads=1",
    "train.eval_tokens=50",
]


def rows(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def load(name, cache, *overrides):
    return configs.load(ROOT / "configs" / name, [*SMALL, f"data.cache={cache}", *overrides])


def test_the_dry_run_knows_the_data(tmp_path):
    config = load("finetune.yaml", tmp_path, "data.corpus.source.books=[Ruth]")
    console = Console(record=True, width=120)
    dry_run(config, console=console)
    assert "2 x 1 x 640 = 1,280" in console.export_text()


@pytest.mark.parametrize("resumed", [False, True])
def test_a_pretrained_run_is_fine_tuned(tmp_path, resumed):
    """Three steps from the weights of another run, in one go or in two, score the held-out answers."""
    cache = tmp_path / "cache"
    base = load("base/small.yaml", cache, "data.sequence_length=32")
    train(base, tmp_path / "base", quiet=True)
    overrides = [f"train.init_from={tmp_path / 'base'}", "train.checkpoint_every=1"]
    books = "data.corpus.source.books=[Ruth, Jude]"
    tuned = load("finetune.yaml", cache, books, *overrides)
    summary = train(tuned, tmp_path / "tuned", quiet=True)
    assert summary["step"] == 3
    assert summary["bits_per_byte"] > 0
    assert 0 < summary["unigram_entropy"] < 3
    if resumed:
        before = rows(tmp_path / "tuned")
        train(tuned, tmp_path / "tuned", resume=1, quiet=True)
        losses = [
            [r["train_loss"] for r in found if r["event"] == "end"]
            for found in (before, rows(tmp_path / "tuned"))
        ]
        assert losses[0] == losses[1]
