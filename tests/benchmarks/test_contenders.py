"""Candidates compute the same before they are timed; one that does not is refused."""

import sys

import pytest
import torch

from benchmarks import train_step
from benchmarks.bench import contenders
from benchmarks.bench.equal import DifferentError, check_equal
from benchmarks.bench.ours import Ours
from benchmarks.bench.peers import PEERS
from benchmarks.bench.shapes import Shape

SHAPES = [Shape(64, 2, batch=1, length=12), Shape(128, 1, batch=2, length=9, precision="bf16")]
LIBRARIES = {"transformers": "transformers", "litgpt": "litgpt", "x-transformers": "x_transformers"}


def peer(kind, shape, reference):
    pytest.importorskip(LIBRARIES[kind], reason=f"{kind} is in .venv-bench only")
    return PEERS.get(kind)(shape, reference.state)


def test_every_library_has_a_peer():
    assert PEERS.names() == sorted(LIBRARIES)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.label} {s.precision}")
@pytest.mark.parametrize("kind", LIBRARIES)
def test_peers_compute_what_depthkit_does_and_still_after_a_step(kind, shape):
    reference = Ours(shape)
    other = peer(kind, shape, reference)
    check_equal(kind, other, reference, reference.measure())
    before = [p.clone() for p in other.model.parameters()]
    for candidate in (reference, other):
        candidate.step()
    assert any(not torch.equal(a, b) for a, b in zip(before, other.model.parameters(), strict=True))
    check_equal(kind, other, reference, reference.measure())


@pytest.mark.parametrize(
    "name", ["embed.weight", "layers.1.mixer.branch.k.weight", "layers.0.ffn.before.weight"]
)
def test_a_peer_with_other_weights_is_refused(name):
    reference, wrong = Ours(SHAPES[0]), Ours(SHAPES[0])
    expected = reference.measure()
    check_equal("twin", wrong, reference, expected)
    with torch.no_grad():
        wrong.state[name].mul_(1.01)
    with pytest.raises(DifferentError, match="wrong computes something else"):
        check_equal("wrong", wrong, reference, expected)


def test_a_peer_whose_gradient_alone_is_wrong_is_refused():
    reference, wrong = Ours(SHAPES[0]), Ours(SHAPES[0])
    wrong.model.block(0).mixer.branch.v.weight.register_hook(lambda gradient: 1.01 * gradient)
    with pytest.raises(DifferentError, match=r"layers\.0\.mixer\.branch\.v\.weight by 1\.0e-02"):
        check_equal("wrong", wrong, reference, reference.measure())


def test_a_peer_of_another_size_is_refused():
    reference, wider = Ours(SHAPES[0]), Ours(SHAPES[0].at(depth=3))
    with pytest.raises(DifferentError, match="parameters, not"):
        check_equal("wider", wider, reference, reference.measure())


def test_a_library_that_is_missing_is_said_to_be_absent(monkeypatch):
    for library in LIBRARIES.values():
        monkeypatch.setitem(sys.modules, library, None)
    found = contenders.gather(SHAPES[0], compiled=False)
    assert list(found.candidates) == ["depthkit"]
    assert [note.partition(" is absent")[0] for note in found.notes] == sorted(LIBRARIES)


def test_a_variant_is_a_list_of_overrides():
    shape = SHAPES[0]
    apart = Ours(shape, ("train.optimizer.flat=false", "model.regulators=[lns]"))
    assert type(apart.trainer.optimizer) is torch.optim.AdamW
    assert [regulator.kind for regulator in apart.config.model.regulators] == ["lns"]
    assert apart.step() == pytest.approx(apart.measure().loss, rel=1e-3)


def test_training_steps_are_timed_and_tabulated(monkeypatch):
    for library in ("litgpt", "x_transformers"):
        monkeypatch.setitem(sys.modules, library, None)
    shape = Shape(64, 2, batch=1, length=8)
    for found in train_step.measure(shape, rounds=2, compiled=False):
        own, times = Shape(**found["shape"]), found["seconds"]
        assert all(len(seconds) == 2 for seconds in times.values())
        assert train_step.tabulate(own, times).rows[0][0] == "depthkit"
        goals = {goal.name.rpartition(" ")[2]: goal for goal in train_step.goals(own, times)}
        assert goals["litgpt"].verdict == "not measured"
        assert ("limit" in goals) == (own.precision == "fp32")
