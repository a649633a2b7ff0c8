"""Accuracy by hops: of a model that knows the answers, of real ones, and on its way into a run folder."""

import math

import pytest
import torch
from torch import nn

from depthkit.model import Transformer
from depthkit.training import checkpoint, metrics
from depthkit.training.evaluation import evaluate
from depthkit.training.examine import examine, held_out
from depthkit.training.run import train
from depthkit.utilization.options import EvalOptions
from tests.models import model_dict, redraw
from tests.training.helpers import digests, losses
from tests.training.test_tensorboard import events

SIZE = 5
TASK = {"kind": "hops", "size": SIZE, "train_hops": [1, 3], "test_hops": [2, 1, 4], "test_problems": 12}
DATA = {"corpus": TASK, "tokenizer": None, "sequence_length": None}
LOOPED = {"depth": 1, "loops": 4}


class Walker(nn.Module):
    """Answers each query by following the pointers once a loop, and `extra` times more."""

    def __init__(self, extra=0):
        super().__init__()
        self.extra = nn.Parameter(torch.tensor(float(extra)))
        self.asked = []

    def forward(self, ids, documents=None, loops=None):
        self.asked.append(loops)
        rows = [self.answer(row, loops + int(self.extra)) for row in ids.tolist()]
        return type("Output", (), {"hidden": nn.functional.one_hot(torch.tensor(rows), SIZE**2 + SIZE)})

    def answer(self, row, hops):
        function = {token // SIZE: token % SIZE for token in row[:SIZE]}
        answers = []
        for token in row[SIZE:]:
            place = token - SIZE**2
            for _ in range(hops):
                place = function[place]
            answers.append(SIZE**2 + place)
        return row[:SIZE] + answers

    def logits(self, hidden):
        return hidden.float()

    def token_losses(self, ids, targets, documents=None, loops=None):
        self.asked.append(loops)
        return torch.where(targets >= 0, 0.5, 0.0)


@pytest.fixture
def hops_trainer(make_trainer):
    return make_trainer(model=LOOPED, data=DATA)


@pytest.mark.parametrize(("extra", "share"), [(0, 1.0), (1, 0.0), (SIZE, 1.0)])
def test_a_model_that_walks_is_right_everywhere_and_one_that_oversteps_nowhere(hops_trainer, extra, share):
    walker = Walker(extra)
    result = evaluate(walker, hops_trainer.data, batch_size=5)
    assert result.accuracy_by_hops == {"2": share, "1": share, "4": share}
    assert set(walker.asked) == {1, 2, 4}
    assert result.tokens == 3 * 12 * SIZE
    assert result.val_loss == pytest.approx(0.5)
    assert result.bits_per_byte is None


def test_every_batch_is_run_with_the_loops_it_asks_for(hops_trainer):
    """Against models that are built with that loop count and nothing else."""
    model = redraw(hops_trainer.model, std=0.5)
    model.head.weight.data[: SIZE**2] = 0  # so that it guesses places, not pairs
    counts, nats = {}, 0.0
    for batch in hops_trainer.data.validation(64):
        config = model.config.model_validate(model_dict(vocab=SIZE**2 + SIZE, depth=1, loops=batch.loops))
        fixed = Transformer(config)
        fixed.load_state_dict(model.state_dict())
        logits = fixed.logits(fixed(batch.ids).hidden)[:, SIZE:]
        answers = batch.targets[:, SIZE:]
        counts[str(batch.loops)] = (logits.argmax(-1) == answers).double().mean().item()
        nats += nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten(), reduction="sum").item()
    result = evaluate(model, hops_trainer.data, batch_size=5)
    assert result.accuracy_by_hops == pytest.approx(counts)
    assert result.val_loss == pytest.approx(nats / (3 * 12 * SIZE), rel=1e-5)
    assert len(set(counts.values())) > 1


def test_text_has_no_accuracy(make_trainer):
    trainer = make_trainer()
    assert evaluate(trainer.model, trainer.data, 4).accuracy_by_hops is None


@pytest.fixture(params=[True, False], ids=["shared", "unshared"])
def config(request, run):
    segments = [{"name": "core", "pattern": ["dense"], "loops": 4, "shared": request.param}]
    model = {"segments": segments}
    return run(model=model, data=DATA, steps=6, checkpoint_every=2, eval_every=3, telemetry_every=2)


def test_a_run_writes_down_its_accuracies(config, tmp_path, capsys):
    done = train(config, tmp_path)
    assert "right answers by hops: 2: 0." in capsys.readouterr().out
    rows = metrics.read(tmp_path / "metrics.jsonl", "validation")
    assert [row["step"] for row in rows] == [3, 6]
    assert all(list(row["accuracy_by_hops"]) == ["2", "1", "4"] for row in rows)
    (end,) = metrics.read(tmp_path / "metrics.jsonl", "end")
    assert end["accuracy_by_hops"] == rows[-1]["accuracy_by_hops"]
    assert done["unigram_entropy"] == pytest.approx(math.log(SIZE))
    points = {v.tag: v.simple_value for e in events(tmp_path / "tb") for v in e.summary.value}
    for hops, share in end["accuracy_by_hops"].items():
        assert points[f"validation/accuracy/{int(hops):02d}_hops"] == pytest.approx(share)


@pytest.mark.parametrize("step", [2, 4])
def test_a_resumed_run_sees_the_same_hops(config, tmp_path, step):
    for folder in ("whole", "parts"):
        train(config, tmp_path / folder, quiet=True)
    train(config, tmp_path / "parts", resume=step, quiet=True)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert digests(tmp_path / "parts", 6) == digests(tmp_path / "whole", 6)
    assert len(losses(tmp_path / "parts")) == 6


def test_a_report_measures_the_problems_of_the_nominal_loop_count(config, tmp_path):
    train(config, tmp_path / "run", quiet=True)
    loaded = checkpoint.load(tmp_path / "run")
    options = EvalOptions.model_validate({"sequences": 12, "probes": ["stream", "ablation"]})
    sequences = held_out(loaded, options)
    walked = [Walker().answer(row, 4)[SIZE:] for row in sequences.ids.tolist()]
    assert sequences.targets[:, SIZE:].tolist() == walked
    assert sequences.num_scored == 12 * SIZE
    nats = loaded.model.token_losses(sequences.ids, sequences.targets, loops=4).sum() / (12 * SIZE)
    report = examine(loaded, sequences, options)
    assert report.content["baseline"]["loss_nats"] == pytest.approx(nats.item(), rel=1e-5)


def test_a_report_needs_problems_of_the_nominal_loop_count(run, tmp_path):
    data = {**DATA, "corpus": {**TASK, "test_hops": [1, 3]}}
    train(run(model=LOOPED, data=data, steps=1), tmp_path, quiet=True)
    with pytest.raises(ValueError, match=r"ask for \[1, 3\] loops.*data.corpus.test_hops"):
        held_out(checkpoint.load(tmp_path), EvalOptions())
