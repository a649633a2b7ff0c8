"""Accuracies of items by skipped visit, against scores taken from hooked forwards one text at a time."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from depthkit.utilization import Subject, evaluate
from depthkit.utilization.capture import skipping
from depthkit.utilization.tasks.items import Item, Items, Row, padded
from tests.utilization import models

NAME = "task_accuracy_drop.skip"


def made(count=7, choices=3):
    """Items whose choices differ in length, of which the second half take the choice alone off."""
    generator = torch.Generator().manual_seed(0)

    def draw(size):
        return tuple(torch.randint(0, models.VOCAB, (size,), generator=generator).tolist())

    items = []
    for place in range(count):
        context, own = draw(4 + place % 3), place >= count // 2
        rows = [Row(context, draw(1 + choice)) for choice in range(choices)]
        alone = [(Row(draw(1), row.continuation, -1.0),) if own else () for row in rows]
        gold = frozenset({place % choices})
        items.append(Item(tuple((row, *more) for row, more in zip(rows, alone, strict=True)), gold))
    return Items("made", tuple(items))


def by_hand(model, items, visit=None):
    """Right or wrong for each item, one row at a time through the model's own forward."""
    layers, right = [*model.layers], []
    for item in items.items:
        scores = []
        for rows in item.choices:
            total = 0.0
            for row in rows:
                whole = torch.tensor([row.context + row.continuation])
                with torch.no_grad(), skipping(layers, -1 if visit is None else visit):
                    log = F.log_softmax(model(whole)[0].double(), -1)
                start = len(row.context) - 1
                total += row.sign * sum(
                    float(log[start + i, token]) for i, token in enumerate(row.continuation)
                )
            scores.append(total)
        right.append(float(int(np.argmax(scores)) in item.gold))
    return np.array(right)


def test_drops_are_those_of_hooked_forwards():
    model, items = models.mixing(4, seed=3).eval(), made()
    report = evaluate(
        model, models.tokens(2, 5), [{"kind": "task_drop", "task": "made"}], tasks={"made": items}
    )
    intact = by_hand(model, items)
    drops = [intact - by_hand(model, items, visit) for visit in range(4)]
    assert report.per_visit(NAME) == pytest.approx([drop.mean() for drop in drops])
    assert report.scalar("task_accuracy") == pytest.approx(intact.mean())
    assert report.scalar("task_chance") == pytest.approx(1 / 3)
    assert report.scalar("task_drop_layer_evals") == 4 + 6
    low, high = report.interval(NAME)
    assert all(a <= value <= b for a, value, b in zip(low, report.per_visit(NAME), high, strict=True))
    assert any(np.abs(drop).sum() for drop in drops)  # or nothing was tested
    assert report.content["skipped"] == []


def test_without_items_it_says_so():
    report = evaluate(models.mixing(2), models.tokens(2, 5), ["task_drop", "stream"])
    reasons = {skipped["metric"]: skipped["reason"] for skipped in report.content["skipped"]}
    assert "no items of 'agreement'" in reasons[NAME]


def test_padding_scores_continuations_only():
    found = padded([([5, 6, 7], [8, 9]), ([1], [2])])
    assert found.ids.tolist() == [[5, 6, 7, 8], [1, 0, 0, 0]]
    assert found.targets.tolist() == [[-100, -100, 8, 9], [2, -100, -100, -100]]
    assert found.mask.tolist() == [[True] * 4, [True, False, False, False]]
    assert padded([([4], [])]).num_scored == 0


def test_the_likeliest_choice_is_right_with_its_own_probability_taken_off():
    rows = [Row((1,), (2,)), Row((1,), (3,))]
    plain = Items("plain", (Item(tuple((row,) for row in rows), frozenset({1})),))
    assert plain.correct(np.array([[-1.0, -2.0], [-2.0, -1.0], [-1.0, -1.0]])).tolist() == [[0], [1], [0]]
    taken = Items("pmi", (Item(tuple((row, row._replace(sign=-1.0)) for row in rows), frozenset({1})),))
    assert taken.correct(np.array([-1.0, -1.0, -2.0, -5.0])).tolist() == [1.0]
    assert taken.chance == 0.5


def test_micro_batches_do_not_matter(monkeypatch):
    from depthkit.utilization.probes import task_drop

    model, items, real = models.mixing(3, seed=1), made(5, 2), task_drop.Engine
    found = []
    for tokens in (1, 1024):
        monkeypatch.setattr(task_drop, "Engine", lambda subject, data, size=tokens: real(subject, data, size))
        report = evaluate(
            Subject(model), models.tokens(2, 5), [{"kind": "task_drop", "task": "x"}], tasks={"x": items}
        )
        found.append(report.per_visit(NAME))
    assert found[0] == found[1]
