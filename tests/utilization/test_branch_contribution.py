"""Writes of single branches against models in which the other branch is cut off by hand."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from depthkit.utilization import Sequences, evaluate
from depthkit.utilization.probe import Context
from depthkit.utilization.probes import PROBES
from depthkit.utilization.structure.inside import PARALLEL
from tests.models import make_ids, make_model, redraw
from tests.utilization import models
from tests.utilization.families import family

NAME = "branch_contribution"


def states(model, ids):
    """Residual states around every visit, through the model's own observer. [L] pairs."""
    found = []
    with torch.no_grad():
        model(ids, observe=lambda visit, before, after: found.append((before.clone(), after.clone())))
    return found


def without_ffn(model, layer):
    """A copy in which one feed-forward gives zeros, whatever norm or add follows it."""
    other = copy.deepcopy(model)
    other.layers[layer].ffn.branch.register_forward_hook(lambda m, a, out: (torch.zeros_like(out[0]), out[1]))
    return other


def ratio_and_cosine(write, read):
    write, read = write.double().numpy(), read.double().numpy()
    sizes = np.linalg.norm(write, axis=-1), np.linalg.norm(read, axis=-1)
    return (sizes[0] / sizes[1]).mean(), ((write * read).sum(-1) / sizes[0] / sizes[1]).mean()


@pytest.mark.parametrize("placement", ["pre", "sandwich"])
def test_writes_are_differences_of_the_stream(placement):
    model, windows = redraw(make_model(depth=3, placement=placement)).eval(), make_ids(4, 10)
    report = evaluate(model, windows, [NAME], batch_tokens=18)
    ids = windows[:, :-1]
    for visit, (before, after) in enumerate(states(model, ids)):
        middle = states(without_ffn(model, visit), ids)[visit][1]
        writes = {"mixer": (middle - before, before), "ffn": (after - middle, middle)}
        for branch, (write, read) in writes.items():
            size, cosine = ratio_and_cosine(write, read)
            assert report.per_visit(f"{branch}_contribution.mean")[visit] == pytest.approx(size, rel=1e-4)
            found = report.per_visit(f"{branch}_update_cosine.mean")[visit]
            assert found == pytest.approx(cosine, abs=1e-4)


def test_the_output_of_a_module_is_not_what_it_writes():
    """With a norm after the branch, measuring the module would give another number."""
    model, windows = redraw(make_model(depth=2, placement="sandwich")).eval(), make_ids(4, 10)
    seen = []
    handle = model.layers[0].mixer.branch.register_forward_hook(lambda m, a, out: seen.append(out[0]))
    before = states(model, windows[:, :-1])[0][0]
    handle.remove()
    wrong, _ = ratio_and_cosine(seen[0], before)
    right = evaluate(model, windows, [NAME]).per_visit("mixer_contribution.mean")[0]
    assert abs(right - wrong) > 0.1 * right


def test_a_post_norm_belongs_to_the_write():
    model, windows = redraw(make_model(depth=2, placement="post")).eval(), make_ids(4, 10)
    report = evaluate(model, windows, [NAME])
    (before, after), _ = states(model, windows[:, :-1])
    block, path = model.layers[0], []
    block.mixer.after_add.register_forward_hook(lambda m, a, out: path.append(out[0]))
    states(model, windows[:, :-1])
    size, _ = ratio_and_cosine(path[0] - before, before)
    assert report.per_visit("mixer_contribution.mean")[0] == pytest.approx(size, rel=1e-4)
    size, _ = ratio_and_cosine(after - path[0], path[0])
    assert report.per_visit("ffn_contribution.mean")[0] == pytest.approx(size, rel=1e-4)


def test_a_branch_that_writes_nothing_has_size_zero_and_no_direction():
    model = redraw(make_model(depth=3))
    with torch.no_grad():
        model.layers[1].mixer.branch.o.weight.zero_()
    report = evaluate(model, make_ids(4, 10), [NAME])
    assert report.per_visit("mixer_contribution.mean")[1] == 0
    assert report.per_visit("mixer_update_cosine.mean")[1] is None
    assert report.per_visit("ffn_contribution.mean")[1] > 0


@pytest.mark.parametrize("stream", ["single", "hyper", "attention_residual", "embedding_skip"])
def test_every_stream_and_loop_has_branches(stream):
    model = redraw(make_model(depth=2, loops=2, stream=stream))
    report = evaluate(model, make_ids(4, 10), [NAME])
    assert not report.content["skipped"]
    assert all(value > 0 for value in report.per_visit("ffn_contribution.mean"))
    assert report.content["timing"]["layer_evals"] == 2 * 4


def test_no_branches_no_number_but_a_reason():
    report = evaluate(models.mixing(3), models.tokens(), [NAME])
    assert report.per_visit("mixer_contribution.mean") == [None] * 3
    (skipped,) = report.content["skipped"]
    assert skipped["metric"] == NAME
    assert skipped["reason"].startswith("3 of 3 visits, such as 0: ")
    assert report.content["timing"]["layer_evals"] == 3


@pytest.mark.parametrize(("name", "parallel"), [("llama", False), ("gpt_neox", True)])
def test_parallel_branches_read_the_same_state(name, parallel):
    """In these families what a module returns is what is added."""
    model, windows = family(name, num_hidden_layers=2), models.tokens(vocab=97)
    layer = (model.gpt_neox if parallel else model.model).layers[1]
    parts, seen = (layer.attention if parallel else layer.self_attn, layer.mlp), {}

    def keep(module, args, kwargs, output):
        state = args[0] if args else kwargs["hidden_states"]
        seen[module] = state, output[0] if isinstance(output, tuple) else output

    handles = [part.register_forward_hook(keep, with_kwargs=True) for part in (*parts, layer)]
    with torch.no_grad():
        model(windows[:, :-1])
    for handle in handles:
        handle.remove()
    h, a, m = seen[layer][0], seen[parts[0]][1], seen[parts[1]][1]
    report = evaluate(model, windows, [NAME])
    for branch, write, read in (("mixer", a, h), ("ffn", m, h if parallel else h + a)):
        size, cosine = ratio_and_cosine(write, read)
        assert report.per_visit(f"{branch}_contribution.mean")[1] == pytest.approx(size, rel=1e-4)
        assert report.per_visit(f"{branch}_update_cosine.mean")[1] == pytest.approx(cosine, abs=1e-4)


def hand_made(before, middle, after, reason=None):
    """The probe on one visit whose three states are given. [B, T, D] each."""
    sequences = Sequences.of(models.tokens(len(before), before.shape[1]))
    structure = SimpleNamespace(inside=[SimpleNamespace(reason=reason)])
    context = Context(
        SimpleNamespace(structure=structure), sequences, 1, 0, [SimpleNamespace(layer=0)], lambda *_: None
    )
    path = SimpleNamespace(
        run=lambda visit, carried, without: (middle, {}),
        stream=lambda carried: carried,
        inseparable=lambda visit: None,
    )
    whole = slice(0, len(before))
    trace = SimpleNamespace(
        path=path, batch=sequences, rows=whole, entered=[before], before=[before], after=[after]
    )
    probe = PROBES.get(NAME)(None, context)
    probe.see(trace)
    return {name: found.values[0] for name, found in probe.compute().per_visit.items()}


def test_what_a_branch_is_held_against():
    before = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    in_sequence = hand_made(before, 2 * before, 5 * before)
    assert in_sequence["mixer_contribution.mean"] == pytest.approx(1.0)
    assert in_sequence["ffn_contribution.mean"] == pytest.approx(1.5)
    in_parallel = hand_made(before, 2 * before, 5 * before, PARALLEL)
    assert in_parallel["ffn_contribution.mean"] == pytest.approx(3.0)


def test_small_states_are_not_clamped_and_near_equal_ones_have_a_cosine():
    before = 1e-9 * torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    found = hand_made(before, 2 * before, 3 * before)
    assert found["mixer_contribution.mean"] == pytest.approx(1.0)
    assert found["ffn_contribution.mean"] == pytest.approx(0.5)
    found = hand_made(before, before * (1 + 1e-6), before * (1 + 2e-6))
    assert all(value is not None and np.isfinite(value) for value in found.values())
    assert found["mixer_update_cosine.mean"] == pytest.approx(1.0, abs=0.2)
