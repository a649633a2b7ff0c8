import math

import numpy as np
import pytest
import torch

from depthkit.training.evaluation import evaluate
from tests.models import redraw


def held_out_ids(corpus):
    ids = np.load(corpus).astype(np.int64)
    return ids[-60:]


@pytest.fixture
def trainer(make_trainer):
    trainer = make_trainer()
    redraw(trainer.model)
    return trainer


def test_every_token_but_the_first_is_scored_once(trainer, corpus):
    ids = torch.from_numpy(held_out_ids(corpus))
    total = 0.0
    for start in range(0, len(ids) - 1, 16):  # windows of 16, the last one shorter
        window = ids[start : start + 17]
        hidden = trainer.model(window[:-1][None]).hidden
        logits = trainer.model.head(hidden, trainer.model.head.weight)[0]
        total += torch.nn.functional.cross_entropy(logits.double(), window[1:], reduction="sum").item()
    result = evaluate(trainer.model, trainer.data, batch_size=3)
    assert result.tokens == len(ids) - 1
    assert result.val_loss == pytest.approx(total / (len(ids) - 1), rel=1e-5)
    assert result.bits_per_byte == pytest.approx(result.val_loss / math.log(2), rel=1e-9)


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_the_loss_does_not_depend_on_the_batch_size(trainer, batch_size):
    whole = evaluate(trainer.model, trainer.data, 4)
    assert evaluate(trainer.model, trainer.data, batch_size).val_loss == pytest.approx(
        whole.val_loss, rel=1e-6
    )


def test_a_cap_reads_less(trainer):
    assert evaluate(trainer.model, trainer.data, 4, max_tokens=32).tokens == 32


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_put_back_and_no_gradient_is_left(trainer, training):
    trainer.model.train(training)
    evaluate(trainer.model, trainer.data, 4)
    assert trainer.model.training is training
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_bits_per_byte_is_undefined_without_byte_counts(trainer, monkeypatch):
    batches = [batch.__class__(batch.ids, batch.targets, None, 0) for batch in trainer.data.validation(4)]
    monkeypatch.setattr(trainer.data, "validation", lambda *_: iter(batches))
    assert evaluate(trainer.model, trainer.data, 4).bits_per_byte is None
