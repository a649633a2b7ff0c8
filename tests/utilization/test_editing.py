"""Edits inside full forwards that somebody else makes: the same as a hook in the model's own forward."""

import pytest
import torch

from depthkit.utilization import Subject
from depthkit.utilization.altered import depth_of, editing, final_stream, unscored
from depthkit.utilization.capture import skipping
from depthkit.utilization.edits import skip, swap
from tests.models import make_ids, make_model, redraw
from tests.utilization.families import family


def ids(batch=3, time=7, vocab=97):
    return torch.randint(3, vocab, (batch, time), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
@torch.no_grad()
def test_a_forward_with_a_visit_skipped_is_the_hooked_one(name):
    model = family(name)
    subject, intact = Subject(model), model(ids()).logits
    with skipping(subject.layers, 2):
        wanted = model(ids(), use_cache=False).logits
    with editing(subject, skip(2)):
        assert torch.equal(model(ids()).logits, wanted)  # as a harness calls it: caches are on by default
        found = model(ids(2, 5), logits_to_keep=2).logits
        assert found.shape[1] == 2
    assert torch.equal(model(ids()).logits, intact)
    assert not torch.allclose(wanted, intact)


@torch.no_grad()
def test_several_visits_and_other_edits():
    model = family("llama")
    subject = Subject(model)
    last = [layer for place, layer in enumerate(subject.layers) if place not in (1, 4)]
    whole, kept = (
        list(model.model.layers),
        torch.nn.ModuleList(last),
    )  # no cache, so removing is the same here
    model.model.layers, model.config.num_hidden_layers = kept, 4
    wanted = model(ids(), use_cache=False).logits
    model.model.layers, model.config.num_hidden_layers = torch.nn.ModuleList(whole), 6
    with editing(subject, skip(1, 4)):
        assert torch.equal(model(ids()).logits, wanted)
    with editing(subject, swap(0, 5)):
        swapped = model(ids()).logits
    assert torch.allclose(subject.read_out(final_stream(subject, unscored(ids()), swap(0, 5))), swapped)


@torch.no_grad()
def test_a_cache_is_refused_and_a_failed_forward_leaves_nothing():
    from transformers import DynamicCache

    model = family("llama")
    subject, edit = Subject(model), skip(1)
    with editing(subject, edit):
        wanted = model(ids()).logits
        with pytest.raises(ValueError, match="full forwards only, without a cache"):
            model(ids(), past_key_values=DynamicCache(config=model.config))
        with pytest.raises(IndexError):
            model(ids() + 200)
        assert torch.equal(model(ids()).logits, wanted)
    assert not model._forward_pre_hooks
    assert not any(layer._forward_hooks for layer in subject.layers)


@pytest.mark.parametrize("loops", [1, 3])
@torch.no_grad()
def test_our_own_models_are_walked(loops):
    model = redraw(make_model(depth=2, loops=loops)).eval()
    subject, batch = Subject(model), unscored(make_ids())
    assert depth_of(subject) == 2 * loops
    assert torch.equal(subject.read_out(final_stream(subject, batch)), model.logits(model(batch.ids).hidden))
    visit = 2 * loops - 1  # the last: its skip is what the visit before it gave
    seen = []
    model(batch.ids, observe=lambda at, before, after: seen.append(after))
    before = final_stream(subject, batch, skip(visit))
    assert torch.equal(before, seen[visit - 1])
