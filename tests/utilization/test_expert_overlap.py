"""Overlap of expert choices between loops, on routers set by hand: equal, shifted, independent."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from torch import nn

from depthkit.utilization import Sequences, Subject, evaluate
from depthkit.utilization.sequences import IGNORED
from tests.models import make_model
from tests.utilization.families import family
from tests.utilization.models import DIM, Model, tokens
from tests.utilization.routed import EXPERTS, hand_set

VOCAB = 24


def measured(model, windows=None, **settings):
    return evaluate(
        model, tokens(4, 9, vocab=VOCAB) if windows is None else windows, ["expert_overlap"], **settings
    )


def hashed(loops, depth=1, k=2, seed=0):
    """Every visit draws a set of experts for every token, on its own."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: tuple(torch.randperm(EXPERTS, generator=generator)[:k].tolist())  # noqa: E731
    return [[draw() for _ in range(VOCAB)] for _ in range(loops * depth)]


def test_the_same_routing_in_every_loop_overlaps_fully():
    report = measured(hand_set([[(v % 8, (3 * v + 1) % 8) for v in range(1, 24, 2)]] * 3), tokens(vocab=12))
    np.testing.assert_array_equal(report.arrays["expert_overlap.trunk"], np.ones((3, 3)))
    assert report.scalar("expert_overlap.trunk") == 1
    assert report.scalar("expert_overlap_chance.trunk") == 2 / EXPERTS
    assert report.scalar("expert_overlap_index.trunk") == EXPERTS / 2
    assert report.scalar("expert_same_set.trunk") == 1
    assert report.scalar("expert_distinct.trunk") == pytest.approx(2 / 6)
    assert report.scalar("expert_load_divergence_nats.trunk") == pytest.approx(0, abs=1e-12)
    assert report.per_visit("expert_overlap_previous.mean") == [None, 1.0, 1.0]


def test_the_order_of_a_set_does_not_matter():
    report = measured(hand_set([[(0, 1)] * 4, [(1, 0)] * 4]), tokens(vocab=4))
    assert report.scalar("expert_overlap.trunk") == report.scalar("expert_same_set.trunk") == 1


def test_shifted_routing():
    """Loop r takes experts v + r and v + r + 1: neighbours share one of two, others none."""
    report = measured(
        hand_set([[((v + r) % 8, (v + r + 1) % 8) for v in range(8)] for r in range(4)]), tokens(vocab=8)
    )
    distance = np.abs(np.subtract.outer(range(4), range(4)))
    np.testing.assert_array_equal(report.arrays["expert_overlap.trunk"], np.clip(1 - distance / 2, 0, 1))
    assert report.scalar("expert_overlap.trunk") == pytest.approx(3 * 2 * 0.5 / 12)
    assert report.scalar("expert_same_set.trunk") == 0
    assert report.scalar("expert_distinct.trunk") == pytest.approx(5 / 8)


def test_independent_choices_overlap_by_chance():
    report = measured(hand_set(hashed(loops=8)), tokens(8, 60, vocab=VOCAB))
    assert report.scalar("expert_overlap.trunk") == pytest.approx(2 / EXPERTS, abs=0.03)
    assert report.scalar("expert_overlap_index.trunk") == pytest.approx(1, abs=0.12)
    low, high = report.content["scalars"]["expert_overlap_index.trunk"]["ci95"]
    assert low <= report.scalar("expert_overlap_index.trunk") <= high


@pytest.mark.parametrize(("loops", "depth", "k"), [(2, 1, 1), (3, 2, 3), (5, 2, 2)])
def test_against_sets(loops, depth, k):
    table, windows = hashed(loops, depth, k), tokens(3, 7, vocab=VOCAB)
    report = measured(hand_set(table, depth), windows, batch_tokens=7)
    seen = windows[:, :-1].flatten().tolist()
    slots = [[[set(table[r * depth + slot][v]) for v in seen] for r in range(loops)] for slot in range(depth)]
    expected, divergence = np.zeros((loops, loops)), np.zeros((loops, loops))
    for slot, (a, b) in itertools.product(slots, itertools.product(range(loops), repeat=2)):
        expected[a, b] += np.mean([len(x & y) / k for x, y in zip(slot[a], slot[b], strict=True)]) / depth
        counts = [np.bincount([e for s in slot[r] for e in s], minlength=EXPERTS) for r in (a, b)]
        divergence[a, b] += jensenshannon(*counts) ** 2 / depth
    np.testing.assert_allclose(report.arrays["expert_overlap.trunk"], expected, rtol=1e-6)
    np.testing.assert_allclose(report.arrays["expert_load_divergence_nats.trunk"], divergence, atol=1e-12)
    same = np.mean(
        [[len({frozenset(x) for x in sets}) == 1 for sets in zip(*slot, strict=True)] for slot in slots]
    )
    assert report.scalar("expert_same_set.trunk") == pytest.approx(same)
    most = min(EXPERTS, k * loops)
    distinct = np.mean([[len(set.union(*sets)) / most for sets in zip(*slot, strict=True)] for slot in slots])
    assert report.scalar("expert_distinct.trunk") == pytest.approx(distinct)
    for visit in range(depth, loops * depth):
        now, before = (slots[visit % depth][visit // depth - back] for back in (0, 1))
        shared = np.mean([len(x & y) / k for x, y in zip(now, before, strict=True)])
        assert report.per_visit("expert_overlap_previous.mean")[visit] == pytest.approx(shared, rel=1e-6)


def test_disjoint_loads_are_ln_2_apart():
    report = measured(hand_set([[(0, 1)] * 4, [(2, 3)] * 4]), tokens(vocab=4))
    assert report.scalar("expert_load_divergence_nats.trunk") == pytest.approx(math.log(2))


def test_padding_does_not_matter_and_choices_cost_nothing():
    model, windows = hand_set(hashed(3)), tokens(4, 9, vocab=VOCAB)
    ids, targets = windows[:, :-1], windows[:, 1:]
    pad = torch.zeros(4, 5, dtype=torch.int64)
    padded = Sequences.of_targets(torch.cat([ids, pad], 1), torch.cat([targets, pad + IGNORED], 1))
    plain, other = measured(model, windows), measured(model, padded)
    for name in plain.content["scalars"]:
        assert other.scalar(name) == pytest.approx(plain.scalar(name), rel=1e-6)
    np.testing.assert_allclose(other.arrays["expert_overlap.trunk"], plain.arrays["expert_overlap.trunk"])
    assert plain.content["timing"]["layer_evals"] == 3


@pytest.mark.parametrize(
    "build", [lambda: make_model(loops=3, vocab=97), lambda: family("mixtral")], ids=["dense", "hf"]
)
def test_nothing_looped_with_experts_is_a_reason(build):
    report = measured(build(), tokens(vocab=97))
    (entry,) = report.content["skipped"]
    assert entry == {
        "metric": "expert_overlap",
        "reason": "no layer with experts is visited in more than one loop",
    }
    assert not report.metrics
    assert not report.content["scalars"].keys() & {"expert_overlap.trunk"}


class Gate(nn.Module):
    """Returns what routers of Hugging Face models do: logits, weights, indices."""

    def __init__(self, dim=DIM):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, dim, generator=torch.Generator().manual_seed(0)))

    def forward(self, h):
        logits = h.flatten(0, 1) @ self.weight.T
        weights, indices = logits.softmax(-1).topk(2)
        return logits, weights / weights.sum(-1, keepdim=True), indices


class Mixture(nn.Module):
    """A layer of another library: a gate, and experts that are linear maps in one tensor."""

    def __init__(self, dim=DIM):
        super().__init__()
        self.gate, self.norm = Gate(dim), nn.LayerNorm(dim)
        self.experts = nn.Parameter(torch.randn(EXPERTS, dim, dim))

    def forward(self, h):
        _, weights, indices = self.gate(self.norm(h))
        mixed = torch.einsum("nk,nkij->nij", weights, self.experts[indices])
        return h + torch.einsum("nij,nj->ni", mixed, h.flatten(0, 1)).view_as(h)


class Foreign(Model):
    """Says nothing about its own head path, so its structure is looked for."""

    read_out = None

    def forward(self, ids):
        h = self.embed(ids)
        for index in self.order:
            h = self.layers[index](h)
        return self.head(self.norm(h))


def test_another_librarys_layer_that_is_visited_again():
    """Its router is watched at every visit; the model itself says nothing about loops or experts."""
    torch.manual_seed(0)
    own, windows = Foreign([Mixture(), Mixture()], order=[0, 1, 0, 1, 0, 1]), tokens(vocab=13)
    report = evaluate(Subject(own), windows, ["expert_overlap", "experts"])
    states, chosen = own.embed(windows[:, :-1]), []
    for index in own.order:
        layer = own.layers[index]
        chosen.append(layer.gate(layer.norm(states))[2])
        states = layer(states)
    overlap = report.arrays["expert_overlap.layers"]
    for a, b in itertools.product(range(3), repeat=2):
        pairs = [zip(chosen[2 * a + s].tolist(), chosen[2 * b + s].tolist(), strict=True) for s in (0, 1)]
        shared = np.mean([[len({*x} & {*y}) / 2 for x, y in pair] for pair in pairs])
        assert overlap[a, b] == pytest.approx(shared, rel=1e-6)
    for visit, indices in enumerate(chosen):
        counts = np.bincount(indices.flatten(), minlength=EXPERTS)
        np.testing.assert_allclose(report.arrays["expert_load.share"][visit], counts / counts.sum())
    assert None not in report.per_visit("router_entropy_nats.mean")
